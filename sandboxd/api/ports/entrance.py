"""The ASGI layer between the door and the routes that takes what leads to ports inside."""

from __future__ import annotations

from anyio.abc import ByteStream
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api.auth import Principal
from sandboxd.api.ports.asked import asked_of
from sandboxd.api.ports.exchange import CallerLeft, Cut, Exchange
from sandboxd.api.ports.place import Place, read_place
from sandboxd.api.ports.tunnel import Tunnel
from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


class Entrance:
    """Plain ASGI, since a router would cost a request more than the way inside does."""

    def __init__(self, routes: ASGIApp, services: Services) -> None:
        self._routes = routes
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        place = None if scope["type"] == "lifespan" else self._place(scope)
        if place is None:
            await self._routes(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._tunnel(place, scope, send)
        elif place.path:
            await self._exchange(place, scope, receive, send)
        else:
            await _move_below(scope, send)

    def _place(self, scope: Scope) -> Place | None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return read_place(
            scope["raw_path"],
            below=scope["state"].get("below"),
            scheme="https" if scope["scheme"] in {"https", "wss"} else "http",
            host=host.decode("latin-1"),
            public_url=self._services.base_url,
        )

    async def _exchange(self, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Principal = scope["state"]["principal"]
        cut = scope["state"]["cut"]
        ports, services = self._services.ports, self._services
        try:
            async with ports.open(place.sandbox_id, place.port, owner=caller.owner) as port:
                trusted = port.template in services.trusted_ports
                asked = asked_of(scope, trusted=trusted, is_ours=services.auth.knows)
                with services.metrics.port_connections.labels("http").track_inprogress():
                    await Exchange(
                        port,
                        place,
                        asked,
                        receive=receive,
                        send=send,
                        stopping=services.stopping,
                    ).run()
        except CallerLeft:
            pass
        except Cut:
            cut()

    async def _tunnel(self, place: Place, scope: Scope, send: Send) -> None:
        caller: Principal = scope["state"]["principal"]
        ports, services = self._services.ports, self._services
        if caller.rights == "read":
            raise SandboxdError(
                ErrorCode.FORBIDDEN, "this token may only read, and a WebSocket goes both ways"
            )
        stream: ByteStream | None = scope["state"].get("bytes")
        if stream is None:  # asked for in a way that only proxies use
            raise SandboxdError(ErrorCode.BAD_REQUEST, "name a WebSocket by its path alone")
        async with ports.open(place.sandbox_id, place.port, owner=caller.owner) as port:
            trusted = port.template in services.trusted_ports
            asked = asked_of(scope, trusted=trusted, is_ours=services.auth.knows)
            with services.metrics.port_connections.labels("websocket").track_inprogress():
                await Tunnel(
                    port, place, asked, caller=stream, send=send, stopping=services.stopping
                ).run()


async def _move_below(scope: Scope, send: Send) -> None:
    """Relative addresses in a page at the prefix itself would lead beside it."""
    # Relative, since what is in front of us may have put the daemon below a path.
    target = scope["raw_path"].rpartition(b"/")[2] + b"/"
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = [(b"location", target), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 308, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
