"""What every request passes first: its id, who is calling, how large it may be, how errors leave.

One plain ASGI layer, because it stands on the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.audited import Ledger
from sandboxd.api.auth import Auth, check_local, check_rights
from sandboxd.api.bodies import MAX_JSON_BYTES, JsonBody, RawBody, too_large
from sandboxd.api.problems import problem, translate
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.telemetry.metrics import Metrics
from sandboxd.telemetry.spans import take_parent
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_STRANGERS = {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN}
_OPEN_PATHS = {"/healthz", "/readyz"}
_RAW_BODIES = re.compile(
    r"^/v1/sandboxes/[^/]+/(files|files/archive|execs/[^/]+/stdin"
    r"|prime/upload|prime/command_session\.CommandSession/\w+)$"
)
_BODIES_OF_OTHERS = re.compile(r"^/v1/(sandboxes/[^/]+/ports/|(sandboxes/[^/]+/)?mcp/)")
_REQUEST_ID = re.compile(r"^[\x21-\x7e]{1,128}$")


class Door:
    """Around the whole application."""

    def __init__(
        self, app: ASGIApp, *, auth: Callable[[], Auth], metrics: Metrics, open_metrics: bool
    ) -> None:
        self._app = app
        self._auth = auth
        self._metrics = metrics
        self._ledger = Ledger()
        self._open = _OPEN_PATHS | ({"/metrics"} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["head_only"] = scope["method"] == "HEAD"
        if state["head_only"]:  # every route that answers GET answers HEAD: the same head
            scope = {**scope, "method": "GET"}
        answer = _Answer(
            send,
            request_id=request_id,
            head_only=state["head_only"],
            note=partial(self._ledger.enter, scope),
        )
        try:
            self._enter(scope, headers)
            take_parent(_text(headers, b"traceparent"))
            bounded = self._bounded(scope, headers, receive)
            await self._app(scope, bounded, answer)
        except Exception as error:
            if answer.ended:
                return  # answered and logged on the way out
            if answer.started:
                raise  # the answer cannot be finished: let the server cut the connection
            refusal = self._refusal(scope, error)
            await refusal(scope, receive, answer)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket passes what a GET passes. Until it is accepted, errors are problems too."""
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        greeting = _Greeting(send, request_id=request_id)
        try:
            self._enter(scope, headers)
            await self._app(scope, receive, greeting)
        except Exception as error:
            if greeting.answered:
                raise  # nobody foresaw this: the server logs it and cuts the line
            refusal = self._refusal(scope, error)
            await refusal(scope, receive, greeting)

    def _refusal(self, scope: Scope, error: Exception) -> Response:
        """The answer to who was not let in, or whose request broke on the way."""
        named, state = translate(error), scope["state"]
        state["code"] = named.code
        if "principal" not in state and named.code in _STRANGERS:
            self._ledger.stranger(scope, code=named.code, status=named.status)
        return problem(named, request_id=state["request_id"], metrics=self._metrics)

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
            own = f"/v1/sandboxes/{principal.lease_id}"
            path = scope["path"] = own + (f"/{rest}" if rest else "")
            # As it came, for whom it is passed on to.
            raw_token, slash, raw_rest = scope["raw_path"][3:].partition(b"/")
            scope["state"]["below"] = f"/s/{raw_token.decode('latin-1')}"
            scope["raw_path"] = own.encode() + (slash + raw_rest if raw_rest else b"")
        else:
            principal = auth.by_header(_text(headers, b"authorization"))
        check_rights(principal, scope.get("method", "GET"), path)
        scope["state"]["principal"] = principal

    def _bounded(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        length = headers.get(b"content-length", b"")
        if not length and b"transfer-encoding" not in headers:
            return receive
        if _RAW_BODIES.match(scope["path"]):
            return RawBody(receive)
        if _BODIES_OF_OTHERS.match(scope["path"]):
            return receive  # a stream may be silent for as long as its two ends like
        if length.isdigit() and int(length) > MAX_JSON_BYTES:
            raise too_large()
        return JsonBody(receive)


class _Answer:
    """The `send` of a request: marks the answer with its id, and knows how far it is."""

    __slots__ = ("_head_only", "_note", "_request_id", "_send", "ended", "started")

    def __init__(
        self, send: Send, *, request_id: str, head_only: bool, note: Callable[[int], None]
    ) -> None:
        """note: is told the status before the caller is."""
        self._send = send
        self._note = note
        self._request_id = (b"x-request-id", request_id.encode())
        self._head_only = head_only
        self.started = self.ended = False

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self.started = True
            self._note(message["status"])
            message["headers"] = [*message["headers"], self._request_id]
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
            if self._head_only:
                message = {**message, "body": b""}
        await self._send(message)


class _Greeting:
    """The `send` of a WebSocket: marks its acceptance, or its refusal, with the request's id."""

    __slots__ = ("_request_id", "_send", "answered")

    def __init__(self, send: Send, *, request_id: str) -> None:
        self._send = send
        self._request_id = (b"x-request-id", request_id.encode())
        self.answered = False

    async def __call__(self, message: Message) -> None:
        """ASGI. Raises `not_found` where the router found nobody to accept it."""
        if not self.answered and message["type"] == "websocket.close":
            raise SandboxdError(ErrorCode.NOT_FOUND, "there is no such WebSocket")
        if message["type"] in {"websocket.accept", "websocket.http.response.start"}:
            self.answered = True
            message["headers"] = [*message.get("headers", ()), self._request_id]
        await self._send(message)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = _text(headers, b"x-request-id")
    return given if _REQUEST_ID.match(given) else new_id("req")


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
