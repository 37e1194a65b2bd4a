"""Byte streams in memory: what stands for a socket between the daemon and a fake guest."""

from __future__ import annotations

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

_CHUNK_BYTES = 65536
_CHUNKS_IN_FLIGHT = 2


class MemoryStream(ByteStream):
    """One end of a pair. Bounded: a sender waits for a reader who is slow."""

    def __init__(
        self, outgoing: MemoryObjectSendStream[bytes], incoming: MemoryObjectReceiveStream[bytes]
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._rest = b""

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        """Some bytes. Raises EndOfStream once the other end has closed and all is read."""
        if not self._rest:
            self._rest = await self._incoming.receive()
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return piece

    async def send(self, item: bytes) -> None:
        """Send all. Raises BrokenResourceError once the other end has closed."""
        for start in range(0, len(item), _CHUNK_BYTES):
            await self._outgoing.send(item[start : start + _CHUNK_BYTES])

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._outgoing.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close both ways, at once."""
        self._outgoing.close()
        self._incoming.close()

    async def aclose(self) -> None:
        """Close both ways."""
        self.close()
        await anyio.lowlevel.checkpoint()


def stream_pair() -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one line."""
    to_right, from_left = anyio.create_memory_object_stream[bytes](_CHUNKS_IN_FLIGHT)
    to_left, from_right = anyio.create_memory_object_stream[bytes](_CHUNKS_IN_FLIGHT)
    return MemoryStream(to_right, from_right), MemoryStream(to_left, from_left)
