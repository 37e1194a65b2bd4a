"""The ASGI layer that takes what leads to MCP servers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.auth import Principal
from sandboxd.api.mcp.bodies import Whole, read_whole
from sandboxd.api.mcp.passing import pass_on
from sandboxd.api.ports.exchange import LINGER_S
from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.answers import answer
from sandboxd.mcp.live import LiveServer
from sandboxd.mcp.messages import is_request, refusal_of
from sandboxd.wire.codes import ErrorCode

_OF_A_LEASE = re.compile(r"/v1/sandboxes/([^/]+)/mcp/([^/]+)(/.*)?", re.DOTALL)
# These are told of the sandbox or of the caller, and not of the server: as problems.
_NOT_OF_THE_SERVER = {
    ErrorCode.NOT_FOUND,
    ErrorCode.LEASE_ENDED,
    ErrorCode.SANDBOX_LOST,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.BAD_REQUEST,
    ErrorCode.SHUTTING_DOWN,
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Which server a path names. rest: what follows its name."""

    sandbox_id: str
    name: str
    rest: str


class McpEntrance:
    """Plain ASGI, since answers are streams."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        found = _OF_A_LEASE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        place = _Place(found[1], found[2], found[3] or "")
        answered = _Answered(send)
        await self._until_stopped(lambda: self._serve(place, scope, receive, answered), answered)

    async def _serve(self, place: _Place, scope: Scope, receive: Receive, send: _Answered) -> None:
        caller: Principal = scope["state"]["principal"]
        mcp, desk = self._services.mcp, self._services.desk
        tenancy = desk.look_at(place.sandbox_id, owner=caller.owner)
        mcp.declared(tenancy, place.name)
        whole = Whole(receive)
        try:
            server = await mcp.find(tenancy, place.name)
            if server.server.port:
                await pass_on(self._services, server, place.rest, scope, whole, send)
            else:
                await self._bridge(server, tenancy, scope, whole, send)
        except SandboxdError as error:
            if error.code in _NOT_OF_THE_SERVER or send.started:
                raise
            await self._refuse(error, scope, whole, send)

    async def _bridge(
        self, server: LiveServer, tenancy: Tenancy, scope: Scope, whole: Whole, send: Send
    ) -> None:
        bridge = await self._services.mcp.bridge(server)
        body = await read_whole(whole) if scope["method"] == "POST" else None
        if scope["method"] == "GET":  # a client that only listens uses nothing
            await bridge.handle(body, scope, whole, send)
            return
        with tenancy.call():
            await bridge.handle(body, scope, whole, send)

    async def _refuse(self, error: SandboxdError, scope: Scope, whole: Whole, send: Send) -> None:
        """Clients of MCP read no problems, and some of them nothing but 200."""
        body = await read_whole(whole) if scope["method"] == "POST" else None
        if not (isinstance(body, dict) and is_request(body)):
            raise error
        self._services.metrics.faults.labels(error.fault, error.code).inc()
        await answer(send, 200, refusal_of(body["id"], error))

    async def _until_stopped(
        self, serve: Callable[[], Awaitable[None]], answered: _Answered
    ) -> None:
        """Streams would keep a daemon from stopping."""
        failure: SandboxdError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop, tasks.cancel_scope, name="mcp-stopping")
            try:
                await serve()
            except SandboxdError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is None and not answered.started and self._services.stopping.is_set():
            failure = SandboxdError(
                ErrorCode.SHUTTING_DOWN,
                "this daemon is shutting down; what was asked inside may go on",
                retry_safe=False,
            )
        if failure is not None:
            raise failure

    async def _stop(self, scope: anyio.CancelScope) -> None:
        await self._services.stopping.wait()
        await anyio.sleep(LINGER_S)
        scope.cancel()


class _Answered:
    """A `send` that knows whether an answer has begun."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        self.started = True
        await self._send(message)
