"""What every request passes first: its id, who is calling, how large it may be, how errors leave.

One plain ASGI layer, because it stands on the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.auth import Auth, check_local, check_rights
from sandboxd.api.problems import problem, translate
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

MAX_JSON_BYTES = 16 << 20
_OPEN_PATHS = {"/healthz", "/readyz"}
_RAW_BODIES = re.compile(r"^/v1/sandboxes/[^/]+/(files|files/archive|execs/[^/]+/stdin)$")
_REQUEST_ID = re.compile(r"^[\x21-\x7e]{1,128}$")


class Door:
    """Around the whole application."""

    def __init__(
        self, app: ASGIApp, *, auth: Callable[[], Auth], metrics: Metrics, open_metrics: bool
    ) -> None:
        self._app = app
        self._auth = auth
        self._metrics = metrics
        self._open = _OPEN_PATHS | ({"/metrics"} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        started = ended = False

        async def send_marked(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            elif message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
            await send(message)

        try:
            self._enter(scope, headers)
            bounded = self._bounded(scope, headers, receive)
            await self._app(scope, bounded, send_marked)
        except Exception as error:
            if ended:
                return  # answered and logged on the way out
            if started:
                raise  # the answer cannot be finished: let the server cut the connection
            answer = problem(translate(error), request_id=request_id, metrics=self._metrics)
            await answer(scope, receive, send_marked)

    def _enter(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Find out who is calling; `/s/{token}/…` becomes the sandbox's own path."""
        path: str = scope["path"]
        auth = self._auth()
        if auth.open:
            check_local(_text(headers, b"host"), _text(headers, b"origin"))
        if path in self._open:
            return
        if path.startswith("/s/"):
            token, _, rest = path[3:].partition("/")
            principal = auth.by_token(unquote(token))
            path = f"/v1/sandboxes/{principal.lease_id}" + (f"/{rest}" if rest else "")
            scope["path"], scope["raw_path"] = path, path.encode()
        else:
            principal = auth.by_header(_text(headers, b"authorization"))
        check_rights(principal, scope["method"], path)
        scope["state"]["principal"] = principal

    def _bounded(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        if _RAW_BODIES.match(scope["path"]):
            return receive
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_JSON_BYTES:
            raise _too_large()
        if length:
            return receive
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_JSON_BYTES:
                raise _too_large()
            return message

        return counted


def _too_large() -> SandboxdError:
    return SandboxdError(
        ErrorCode.TOO_LARGE,
        f"a JSON body is limited to {MAX_JSON_BYTES} bytes: send large data through /files",
        details={"limit_bytes": MAX_JSON_BYTES},
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = _text(headers, b"x-request-id")
    return given if _REQUEST_ID.match(given) else new_id("req")


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
