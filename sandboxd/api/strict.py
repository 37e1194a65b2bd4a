"""Routes that refuse a query parameter they do not know: a filter or a flag that is misspelt must
never be left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.responses import Response

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


class StrictRoute(APIRoute):
    """Answers `bad_request` with the name of the first parameter that is not this route's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's own answer, behind the check."""
        answer = super().get_route_handler()
        known = frozenset(_parameters(self.dependant))

        async def checked(request: Request) -> Response:
            if query := request.scope["query_string"]:
                for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
                    if name not in known:
                        raise _unknown(name)
            return await answer(request)

        return checked


def _parameters(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _unknown(name: str) -> SandboxdError:
    field = name[:200]
    problem = {"field": field, "problem": "there is no such parameter"}
    return SandboxdError(
        ErrorCode.BAD_REQUEST,
        f"{field}: there is no such parameter",
        details={"problems": [problem]},
    )
