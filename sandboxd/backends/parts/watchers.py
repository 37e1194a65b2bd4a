"""Who wants to hear of deaths. Bounded: a watcher that does not listen is cut off, loudly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_MAX_UNHEARD = 10_000


class Watchers:
    """Each hears every death once, from when it joined."""

    def __init__(self) -> None:
        self._streams: list[MemoryObjectSendStream[Death]] = []

    @asynccontextmanager
    async def join(self) -> AsyncIterator[AsyncIterator[Death]]:
        """Hear deaths until leaving."""
        send, receive = anyio.create_memory_object_stream[Death](_MAX_UNHEARD)
        self._streams.append(send)
        with send, receive:
            try:
                yield _Heard(receive)
            finally:
                if send in self._streams:
                    self._streams.remove(send)

    def tell(self, death: Death) -> None:
        """Tell all."""
        for stream in list(self._streams):
            try:
                stream.send_nowait(death)
            except anyio.WouldBlock:
                self._streams.remove(stream)
                stream.close()


class _Heard(AsyncIterator[Death]):
    def __init__(self, deaths: MemoryObjectReceiveStream[Death]) -> None:
        self._deaths = deaths

    async def __anext__(self) -> Death:
        try:
            return await self._deaths.receive()
        except anyio.EndOfStream:
            raise SandboxdError(
                ErrorCode.BACKEND_UNAVAILABLE, "this watcher did not listen"
            ) from None
