"""What a client has not taken yet: bounded in number and in bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
from pydantic_core import to_json

from sandboxd.mcp.messages import Message, RequestId

_MOST = 4096  # messages for a client that reads slowly
_MOST_BYTES = 64 << 20

Letter = tuple[Message, RequestId | None]  # and the request that it is about


class Mailbox(AsyncIterator[Letter]):
    """Filled without waiting; read by one reader, until it is closed. What was read last takes room
    until its reader asks for the next.
    """

    def __init__(self) -> None:
        self._put, self._taken = anyio.create_memory_object_stream[tuple[Letter, int]](_MOST)
        self._bytes = self._held = 0

    def put(self, message: Message, about: RequestId | None = None) -> bool:
        """Whether there was room for it."""
        size = len(to_json(message))
        fits = self._bytes + size <= _MOST_BYTES and self._send(message, about, size)
        self._bytes += size if fits else 0
        return fits

    def put_answer(self, message: Message) -> None:
        """What must not be lost for its size: there is one of it."""
        self._send(message, None, 0)

    def _send(self, message: Message, about: RequestId | None, size: int) -> bool:
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._put.send_nowait(((message, about), size))
            return True
        return False

    async def __anext__(self) -> Letter:
        """The next one."""
        self._bytes, self._held = self._bytes - self._held, 0
        letter, self._held = await anext(self._taken)
        return letter

    def close(self) -> None:
        """It takes nothing more, and its reader is told so."""
        self._put.close()
        self._taken.close()
