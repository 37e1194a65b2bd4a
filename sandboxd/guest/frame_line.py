"""A connection to a guest that carries frames both ways, until the last event of what it follows.

Knows frames, not what is in them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import anyio

from sandboxd.guest.fields import nonsense
from sandboxd.guest.line import GuestLost, Line, drop
from sandboxd.wire.frames import MAX_PAYLOAD_BYTES, Frame, FrameDecoder, FrameError
from sandboxd.wire.http1 import AsyncStream, Headers

E = TypeVar("E")

_READ_BYTES = 1 << 18
_UPGRADE: Headers = [(b"connection", b"Upgrade"), (b"upgrade", b"sandbox-frames")]


class FrameLine(AsyncIterator[E], ABC, Generic[E]):
    """Iterate for events until the last one. Raises GuestLost if the line is cut before it.

    One reader; sends may come from other tasks. A cancelled read loses nothing, a cancelled send
    closes the line.
    """

    _followed: str  # what runs at the other end, in words
    _read_bytes = _READ_BYTES  # at once

    def __init__(
        self, stream: AsyncStream, early: bytes, *, limit: int = MAX_PAYLOAD_BYTES
    ) -> None:
        """limit: of a frame's payload, in bytes."""
        self._stream = stream
        self._early = early
        self._decoder = FrameDecoder(limit=limit)
        self._frames: deque[Frame] = deque()
        self._ended = False
        self._sending = anyio.Lock()  # frames of two senders must not mix

    @abstractmethod
    def _read(self, frame: Frame) -> E:
        """Its event. Raises GuestLost for nonsense, FrameError."""

    @abstractmethod
    def _is_last(self, event: E) -> bool:
        """Whether nothing comes after it."""

    async def __anext__(self) -> E:
        """The next event. Raises GuestLost."""
        if self._ended:
            raise StopAsyncIteration
        try:
            while not self._frames:
                self._frames.extend(self._decoder.feed(await self._receive()))
            event = self._read(self._frames.popleft())
        except FrameError as error:
            raise GuestLost(str(error), sent=True) from error
        self._ended = self._is_last(event)
        return event

    async def aclose(self) -> None:
        """Let go of the line; what it followed runs on. Idempotent, never waits."""
        self._ended = True
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    async def _receive(self) -> bytes:
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            data = await self._stream.receive(self._read_bytes)
        except OSError as error:
            raise GuestLost(str(error), sent=True) from error
        if not data:
            raise GuestLost(f"the line was cut before the {self._followed} ended", sent=True)
        return data

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.send(frame)
            except OSError as error:
                raise GuestLost(str(error), sent=True) from error
            except BaseException:
                # Half a frame may be out: whatever followed it would be misread.
                await self.aclose()
                raise


L = TypeVar("L", bound=FrameLine[Any])


@asynccontextmanager
async def open_frame_line(
    line: Line, target: str, made: Callable[[AsyncStream, bytes], L]
) -> AsyncIterator[L]:
    """Ask a guest for frames at that target. made: makes the line of its connection."""
    connection, response = await line.open("GET", target, _UPGRADE)
    if response.status != 101:
        await drop(connection)
        raise nonsense("upgrade")
    opened = made(*connection.detach())
    try:
        yield opened
    finally:
        await opened.aclose()
