"""The ASGI layer that takes what leads to MCP servers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.auth import Principal
from sandboxd.api.mcp.bodies import Whole, read_whole
from sandboxd.api.mcp.own_bridges import OwnBridges
from sandboxd.api.mcp.passing import noted, pass_on
from sandboxd.api.mcp.veil import draw
from sandboxd.api.ports.exchange import LINGER_S
from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError
from sandboxd.mcp.clients.answers import answer
from sandboxd.mcp.hidden import veil_of
from sandboxd.mcp.messages import is_request, refusal_of
from sandboxd.model.mcp_server import OWN_SERVER
from sandboxd.wire.codes import ErrorCode

if TYPE_CHECKING:
    from sandboxd.mcp.clients.bridge import Bridge

_OF_A_LEASE = re.compile(r"/v1/sandboxes/([^/]+)/mcp/([^/]+)(/.*)?", re.DOTALL)
_OF_ALL = re.compile(r"/v1/()mcp/([^/]+)(/.*)?", re.DOTALL)
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
    """Which server a path names. sandbox_id: empty for a shared one without a lease. rest: what
    follows its name.
    """

    sandbox_id: str
    name: str
    rest: str


class McpEntrance:
    """Plain ASGI, since answers are streams."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._own = OwnBridges(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = scope["path"] if scope["type"] == "http" else ""
        found = _OF_A_LEASE.fullmatch(path) or _OF_ALL.fullmatch(path)
        if found is None:
            await self._app(scope, receive, send)
            return
        place = _Place(found[1], found[2], found[3] or "")
        answered = _Answered(send)
        await self._until_stopped(lambda: self._serve(place, scope, receive, answered), answered)
        if answered.started and not answered.ended:
            scope["state"]["cut"]()

    async def _serve(self, place: _Place, scope: Scope, receive: Receive, send: _Answered) -> None:
        whole = Whole(receive)
        try:
            if place.sandbox_id:
                await self._serve_lease(place, scope, whole, send)
            elif place.name == OWN_SERVER:
                bridge = await self._own.of(scope["state"]["principal"])
                await _cross(bridge, scope, whole, send)
            else:
                await self._serve_shared(place, scope, whole, send)
        except SandboxdError as error:
            if error.code in _NOT_OF_THE_SERVER or send.started:
                raise
            await self._refuse(error, scope, whole, send)

    async def _serve_lease(self, place: _Place, scope: Scope, whole: Whole, send: Send) -> None:
        caller: Principal = scope["state"]["principal"]
        mcp = self._services.mcp
        tenancy = self._services.desk.look_at(place.sandbox_id, owner=caller.owner)
        declared = mcp.declared(tenancy, place.name)
        await mcp.open(tenancy)
        with ExitStack() as use:
            if scope["method"] != "GET":  # a client that only listens uses nothing
                use.enter_context(tenancy.call())
            veil = mcp.veil(tenancy, place.name)
            shared = declared.scope == "shared" and mcp.shared_of(place.name).shared.server
            if shared:
                use.enter_context(noted(tenancy, place.name, whole))
            if veil is not None and (declared.port or (shared and shared.port)):
                scope, send = await draw(veil, scope, whole, send)
            if shared and shared.port:
                await self._pass_on_shared(place, scope, whole, send)
            elif declared.port:
                server = await mcp.find(tenancy, place.name)
                await pass_on(self._services, server, place.rest, scope, whole, send)
            else:
                await _cross(await mcp.bridge(tenancy, place.name), scope, whole, send)

    async def _serve_shared(self, place: _Place, scope: Scope, whole: Whole, send: Send) -> None:
        server = self._services.mcp.shared_of(place.name).shared.server
        veil_of(server, {})  # there is no lease to fill it from
        if server.port:
            await self._pass_on_shared(place, scope, whole, send)
        else:
            bridge = await self._services.mcp.shared_bridge(place.name)
            await _cross(bridge, scope, whole, send)

    async def _pass_on_shared(self, place: _Place, scope: Scope, whole: Whole, send: Send) -> None:
        async with self._services.mcp.shared_of(place.name).passing() as server:
            await pass_on(self._services, server, place.rest, scope, whole, send)

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


async def _cross(bridge: Bridge, scope: Scope, whole: Whole, send: Send) -> None:
    if scope["state"].get("head_only"):  # a stream's head would be all there is to wait for
        await answer(send, 405, None)
        return
    body = await read_whole(whole) if scope["method"] == "POST" else None
    await bridge.handle(body, scope, whole, send)


class _Answered:
    """A `send` that knows how far its answer is."""

    __slots__ = ("_send", "ended", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.ended = False

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        self.started = True
        body = message["type"] == "http.response.body"
        self.ended = body and not message.get("more_body", False)
        await self._send(message)
