"""Connections of callers held to bounds that the server itself does not set: how many there may be,
how long a request's head may take to arrive, and how large it may grow.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the server's own protocol classes are asyncio's
import resource
from functools import partial
from typing import Any
from urllib.parse import unquote
from weakref import ref

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandboxd.api.ports.place import leads_inside
from sandboxd.api.problems import problem_body
from sandboxd.api.sockets.channels import largest_frame
from sandboxd.bare_connections import BareConnection
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import ErrorCode

HEAD_S = 30.0
SILENT_S = 320.0  # for a connection opened ahead of need: callers are promised at least 300
MAX_HEAD_BYTES = 64 << 10
FAREWELL_S = 2.0  # for a WebSocket's peer to take the rest and close in turn
_SHARE_OF_DESCRIPTORS = 0.75  # the rest is for guests, the store and boxes in the making


class GuardedConnection(HttpToolsProtocol):
    """One connection of a caller. Whoever is over a bound is cut off.

    Bodies and answers have bounds of their own, behind the door.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent = True
        self._in_head = False
        self._head_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Turn away whoever comes when the house is full."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._expect_head(SILENT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._in_head = False
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.scope is self.scope:
            self.scope["state"]["cut"] = partial(_cut, ref(cycle))

    def data_received(self, data: bytes) -> None:
        """Feed the parser; then see whether the peer still owes us a head."""
        if self._silent:
            self._silent = False
            self._stop_clock()
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # it is a WebSocket now, with bounds of its own
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head is too large.")
        else:
            self._head_bytes = 0
        # Bytes of no request, and those behind an answered one, are a head that never comes.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self._expect_head(HEAD_S)
        else:
            self._stop_clock()

    def handle_websocket_upgrade(self) -> None:
        """Let the connection become a WebSocket, unless an answer is still due on it. One that
        leads inside is passed on as bytes.
        """
        self._stop_clock()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()
        elif leads_inside(self.url):
            self._become_bare()
        else:
            super().handle_websocket_upgrade()

    def _become_bare(self) -> None:
        self.connections.discard(self)
        raw_path, _, query = self.url.partition(b"?")
        scope = {
            **self.scope,
            "type": "websocket",
            "raw_path": raw_path,
            "path": unquote(raw_path.decode("latin-1")),
            "query_string": query,
        }
        bare = BareConnection(self.app, scope, server_state=self.server_state)
        self.transport.set_protocol(bare)
        bare.connection_made(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP with a problem, as every other error."""
        error = SandboxdError(ErrorCode.BAD_REQUEST, msg, status=400)
        request_id = new_id("req")
        body = to_json(problem_body(error, request_id=request_id))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _expect_head(self, within_s: float) -> None:
        if self._head_due is None and not self.transport.is_closing():
            self._head_due = self.loop.call_later(within_s, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A caller's WebSocket. A peer that takes nothing any more never keeps the connection open.

    `scope["state"]["gone"]` is an event that is set when the connection is lost: an application
    that holds input back does not hear of it otherwise.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = FAREWELL_S
        self._gone = asyncio.Event()
        self._cut: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the clock."""
        super().connection_lost(exc)
        self._gone.set()
        if self._cut is not None:
            self._cut.cancel()

    def shutdown(self) -> None:
        """Say goodbye (1012: come back in a moment) as the daemon stops."""
        super().shutdown()
        self._cut_soon()

    def keepalive_timeout(self) -> None:
        """No pong came in time. Where input is held back it cannot have come: ask again."""
        if not self.read_paused:
            super().keepalive_timeout()
            self._cut_soon()
        else:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()

    async def run_asgi(self) -> None:
        """Run the application; what it leaves unsent is not waited for without end."""
        self.scope["state"]["gone"] = self._gone
        self.conn.max_message_size = largest_frame(self.scope["path"], self.config.ws_max_size)
        await super().run_asgi()
        self._cut_soon()

    async def send(self, message: Any) -> None:
        """ASGI. A refusal is a handshake too, and no error to log when it is all that was sent."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def _cut_soon(self) -> None:
        # A graceful close waits until everything is taken, which may be never.
        if self._cut is None and not self.disconnected:
            self._cut = self.loop.call_later(FAREWELL_S, self.transport.abort)


def _cut(of: ref[RequestResponseCycle]) -> None:
    """Close the connection on an answer that cannot be finished. No fault of the application's.

    of: held loosely, since it holds the scope in which this stands.
    """
    if (cycle := of()) is not None:
        cycle.disconnected = True
        cycle.transport.close()
        # A graceful close waits until everything is taken, which may be never.
        asyncio.get_running_loop().call_later(FAREWELL_S, cycle.transport.abort)


def most_connections() -> int:
    """How many callers may be connected at once, by the descriptors that this process may have."""
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS)
