"""A stream whose directions end one by one, over one that only ends as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream

_HEAD = 4  # bytes of a piece's length, which is 0 for the end
_READ_BYTES = 1 << 16
_SEND_BYTES = 1 << 16
_STILL_HERE = b"\1"


async def open_pieces(inner: ByteStream, early: bytes) -> PieceStream:
    """What follows a guest's answer. early: what was read of it. Raises BrokenResourceError."""
    await inner.send(_STILL_HERE)
    return PieceStream(inner, early)


class PieceStream(ByteStream):
    """See the module. A stream that ends without a last piece was cut off: BrokenResourceError.

    A cancelled `receive` loses nothing.
    """

    def __init__(self, inner: ByteStream, early: bytes) -> None:
        self._inner = inner
        self._waiting = bytearray(early)
        self._left = 0  # of the piece that is being read
        self._ended = False
        self._sending = anyio.Lock()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the stream below."""
        return self._inner.extra_attributes

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """Some bytes. Raises EndOfStream, BrokenResourceError, ClosedResourceError."""
        while True:
            if self._ended:
                raise anyio.EndOfStream
            if not self._left and len(self._waiting) >= _HEAD:
                self._left = int.from_bytes(self._waiting[:_HEAD], "big")
                del self._waiting[:_HEAD]
                self._ended = not self._left
            elif self._left and self._waiting:
                piece = bytes(self._waiting[: min(self._left, max_bytes)])
                del self._waiting[: len(piece)]
                self._left -= len(piece)
                return piece
            else:
                await self._read()

    async def _read(self) -> None:
        try:
            self._waiting += await self._inner.receive(_READ_BYTES)
        except anyio.EndOfStream:
            raise anyio.BrokenResourceError from None

    async def send(self, item: bytes) -> None:
        """Send all. Raises BrokenResourceError, ClosedResourceError."""
        for start in range(0, len(item), _SEND_BYTES):
            await self._send(item[start : start + _SEND_BYTES])

    async def send_eof(self) -> None:
        """End our direction; the other one goes on."""
        await self._send(b"")

    async def _send(self, piece: bytes) -> None:
        async with self._sending:
            await self._inner.send(len(piece).to_bytes(_HEAD, "big") + piece)

    async def aclose(self) -> None:
        """Close both directions, at once."""
        await anyio.aclose_forcefully(self._inner)
