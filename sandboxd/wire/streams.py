"""Transports for `http1`: anyio byte streams, and plain sockets for the synchronous twin."""

from __future__ import annotations

import socket
from contextlib import suppress

import anyio
from anyio.abc import ByteStream


class AnyioStream:
    """An anyio byte stream as `http1` wants it: empty reads at the end, OSError when it breaks."""

    __slots__ = ("_inner",)

    def __init__(self, inner: ByteStream) -> None:
        self._inner = inner

    @property
    def inner(self) -> ByteStream:
        """The stream itself, for who goes on without HTTP."""
        return self._inner

    async def receive(self, max_bytes: int) -> bytes:
        """Some bytes; empty at the end."""
        try:
            return await self._inner.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionResetError(str(error.__cause__ or "connection broken")) from error

    async def send(self, data: bytes) -> None:
        """Send all."""
        try:
            await self._inner.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise BrokenPipeError(str(error.__cause__ or "connection broken")) from error

    async def aclose(self) -> None:
        """Close at once, without waiting for the peer."""
        await anyio.aclose_forcefully(self._inner)


class SocketStream:
    """A connected, blocking socket. Its time-out is set per wait by `timeout_s`."""

    __slots__ = ("_socket",)

    def __init__(self, inner: socket.socket) -> None:
        self._socket = inner

    def set_timeout(self, timeout_s: float | None) -> None:
        """Bound each following wait; None waits for ever. One that is over raises TimeoutError."""
        self._socket.settimeout(timeout_s)

    def receive(self, max_bytes: int) -> bytes:
        """Some bytes; empty at the end."""
        return self._socket.recv(max_bytes)

    def send(self, data: bytes) -> None:
        """Send all."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Close; never raises."""
        with suppress(OSError):
            self._socket.close()
