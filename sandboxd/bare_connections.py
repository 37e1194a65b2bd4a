"""Connections of callers whose bytes an application passes on itself, once their head has passed
the door. Knows HTTP only as far as a handshake is refused or answered.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the server's own protocol classes are asyncio's
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import anyio
import structlog
from anyio.abc import ByteStream
from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

log = structlog.get_logger(__name__)

FAREWELL_S = 2.0  # for a peer to take the rest and close in turn
_HELD_BYTES = 1 << 16

_SWITCHING = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
_CLOSING = [(b"connection", b"close")]


class BareConnection(asyncio.Protocol):
    """Runs an application with an ASGI `websocket` scope whose `state` has the caller's `bytes`.

    The application sends `websocket.accept`, whose headers are those of the 101, or
    `websocket.http.response.…`; what comes after an acceptance goes by `bytes` alone. When the
    application returns the connection is closed.
    """

    def __init__(self, app: ASGIApp, scope: Scope, *, server_state: ServerState) -> None:
        self._app = app
        self._scope = scope
        self._server = server_state
        self._loop = asyncio.get_running_loop()
        self._stream: CallerStream | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection over, and start."""
        self._stream = CallerStream(transport)
        self._scope["state"]["bytes"] = self._stream
        self._server.connections.add(self)  # type: ignore[arg-type]
        task = self._loop.create_task(self._run(self._stream))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._server.connections.discard(self)
        self._caller.lost()

    def data_received(self, data: bytes) -> None:
        """Some bytes of the caller's."""
        self._caller.came(data)

    def eof_received(self) -> bool:
        """The caller sends no more, but may read on."""
        self._caller.ended()
        return True

    def pause_writing(self) -> None:
        """The caller takes less than it is sent."""
        self._caller.hold()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._caller.go_on()

    def shutdown(self) -> None:
        """The daemon stops. The application knows, and has a moment."""
        self._loop.call_later(FAREWELL_S, self._caller.transport.abort)

    @property
    def _caller(self) -> CallerStream:
        assert self._stream is not None  # a connection is made before anything else happens to it
        return self._stream

    async def _run(self, stream: CallerStream) -> None:
        try:
            await self._app(self._scope, _receive, self._send)
        except Exception:
            log.exception("connection.failed")
        finally:
            stream.transport.close()
            # Closing waits until everything is taken, which may be never.
            self._loop.call_later(FAREWELL_S, stream.transport.abort)

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "websocket.accept":
                await self._caller.send(_head(101, message["headers"], _SWITCHING))
            case "websocket.http.response.start":
                await self._caller.send(_head(message["status"], message["headers"], _CLOSING))
            case "websocket.http.response.body":
                await self._caller.send(message.get("body", b""))
            case kind:
                raise RuntimeError(f"a bare connection knows no {kind}")


class CallerStream(ByteStream):
    """The bytes of one caller, by anyio's rules. At most 64 KiB and one read of them wait here."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._held = bytearray()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = self._lost = self._paused = False

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """None."""
        return {}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Some bytes. A cancelled call loses none."""
        while not self._held:
            if self._lost:
                raise anyio.BrokenResourceError
            if self._ended:
                raise anyio.EndOfStream
            self._readable.clear()
            await self._readable.wait()
        data = bytes(self._held[:max_bytes])
        del self._held[:max_bytes]
        if self._paused and not self._held and not self._lost:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def send(self, item: bytes) -> None:
        """Write at once, then wait for a slow reader. Cancelled: all of it is on its way."""
        if self._lost or self.transport.is_closing():
            raise anyio.BrokenResourceError
        if item:
            self.transport.write(item)
        await self._writable.wait()

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        if not self._lost and self.transport.can_write_eof():
            self.transport.write_eof()

    async def aclose(self) -> None:
        """Close, once what was sent is taken."""
        self.transport.close()

    # What its connection hears.

    def came(self, data: bytes) -> None:
        """Bytes."""
        self._held += data
        if len(self._held) > _HELD_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._readable.set()

    def ended(self) -> None:
        """No more of them."""
        self._ended = True
        self._readable.set()

    def lost(self) -> None:
        """Nobody is there."""
        self._lost = True
        self._readable.set()
        self._writable.set()

    def hold(self) -> None:
        """Too much is on its way."""
        self._writable.clear()

    def go_on(self) -> None:
        """No longer."""
        self._writable.set()


async def _receive() -> Message:
    return {"type": "websocket.connect"}


def _head(status: int, *parts: list[tuple[bytes, bytes]]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}".encode()]
    lines += [name + b": " + value for headers in parts for name, value in headers]
    return b"\r\n".join([*lines, b"", b""])
