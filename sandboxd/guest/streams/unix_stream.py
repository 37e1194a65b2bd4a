"""A Unix socket as a byte stream. Knows no guest and no HTTP.

anyio's own answers the loop with an error when a wait is cancelled in the very turn in which its
socket becomes ready, and thousands of calls a minute meet that turn.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream, SocketAttribute

_READ_BYTES = 65536
_BACKLOG_PAUSE_S = 0.005


class UnixStream(ByteStream):
    """One connected, non-blocking socket. A cancelled `receive` loses nothing."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @property
    def bare(self) -> socket.socket:
        """The socket. Who uses it leaves the stream alone, but for closing it."""
        return self._socket

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The raw socket, to ask the kernel for its peer."""
        return {SocketAttribute.raw_socket: lambda: self._socket}

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """Some bytes. Raises EndOfStream, BrokenResourceError, ClosedResourceError."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                waited = True
                continue
            except OSError as error:
                raise self._failure() from error
            if not waited:
                await anyio.lowlevel.cancel_shielded_checkpoint()
            if not data:
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        """Send all. Raises BrokenResourceError, ClosedResourceError."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise self._failure() from error

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()

    def _failure(self) -> Exception:
        closed = self._socket.fileno() < 0
        return anyio.ClosedResourceError() if closed else anyio.BrokenResourceError()


async def connect_unix(path: Path) -> UnixStream:
    """Connect; waits while the listener's backlog is full. Raises OSError."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)  # noqa: FBT003 - the standard library's word
        while True:
            try:
                connecting.connect(str(path))
            except BlockingIOError:
                await anyio.sleep(_BACKLOG_PAUSE_S)
            else:
                return UnixStream(connecting)
    except BaseException:
        connecting.close()
        raise
