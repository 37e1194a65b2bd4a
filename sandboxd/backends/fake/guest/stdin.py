"""The input of a running command: counted bytes in a bounded buffer, filled by calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel

from sandboxd.backends.fake.guest.refusals import Refusal

_ROOM_BYTES = 65536


class Stdin:
    """taken: how many bytes calls have given in all. Writers take turns; the program reads.

    first: bytes that the order itself brought; they are not counted.
    """

    def __init__(self, first: bytes = b"") -> None:
        self.taken = 0
        self._buffer = bytearray(first)
        self._ended = False
        self._gone = False
        self._turn = anyio.Lock()
        self._changed = anyio.Event()

    async def feed(self, body: AsyncIterator[bytes], *, offset: int | None, eof: bool) -> int:
        """Take a body in, waiting for room. Raises Refusal `conflict` for a gap, and `gone`."""
        async with self._turn:
            start = self.taken if offset is None else offset
            if start > self.taken:
                raise Refusal("conflict", "bytes are missing before these", offset=self.taken)
            skip = self.taken - start
            async for piece in body:
                fresh, skip = piece[skip:], max(0, skip - len(piece))
                await self._put(fresh)
            if eof:
                self._ended = True
                self._notify()
            if self._gone and not eof:
                raise Refusal("gone", "the process has closed its input")
            return self.taken

    async def put(self, data: bytes) -> None:
        """Take bytes in, waiting for room. Raises Refusal `gone`."""
        async with self._turn:
            await self._put(data)

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._notify()

    def close(self) -> None:
        """The process is gone: writers are told."""
        self._gone = True
        self._buffer.clear()
        self._notify()

    async def read(self, limit: int) -> bytes:
        """Some bytes; empty at the end."""
        await anyio.lowlevel.checkpoint()
        while not self._buffer and not self._ended:
            await self._changed.wait()
        piece = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        self._notify()
        return piece

    async def _put(self, data: bytes) -> None:
        while data:
            if self._gone or self._ended:
                raise Refusal("gone", "the process has closed its input")
            room = _ROOM_BYTES - len(self._buffer)
            if room <= 0:
                await self._changed.wait()
                continue
            self._buffer += data[:room]
            self.taken += len(data[:room])
            data = data[room:]
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
