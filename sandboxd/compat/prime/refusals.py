"""How the gateway says no: in the few forms that its clients tell apart."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from sandboxd.api.problems import problem, translate
from sandboxd.api.services import request_id_of, services_of
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.wire.codes import ErrorCode

_OVER = {ErrorCode.LEASE_ENDED, ErrorCode.SANDBOX_LOST}
# A 409 has their clients look whether the sandbox runs, and try again if it does: that is for one
# that does not run yet, not for a path of the wrong kind.
_OF_FILES = {
    ErrorCode.FILE_IS_DIRECTORY,
    ErrorCode.FILE_NOT_DIRECTORY,
    ErrorCode.FILE_EXISTS,
}


def refusal(request: Request, error: SandboxdError) -> Response:
    """The answer to a request that failed: a problem of ours with `error` beside it."""
    word, status = str(error.code), error.status
    if error.code in _OVER:
        word, status = "sandbox_terminated", 410
    elif error.code is ErrorCode.NOT_FOUND:
        word, status = "sandbox_not_found", 502
    elif error.code in _OF_FILES:
        status = 400
    request.scope["state"]["code"] = error.code
    answer = problem(
        error,
        request_id=request_id_of(request),
        metrics=services_of(request).metrics,
        more={"error": word},
    )
    answer.status_code = status or 500
    return answer


class GatewayRoute(StrictRoute):
    """A route whose errors leave in the gateway's forms."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's own answer, or its refusal."""
        handle = super().get_route_handler()

        async def refusing(request: Request) -> Response:
            try:
                return await handle(request)
            except (SandboxdError, GuestLost, TimeoutError, RequestValidationError) as error:
                return refusal(request, translate(error))

        return refusing
