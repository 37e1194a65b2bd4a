"""One connection that is on its way out: what moves through it, when it last did, and its end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxd.egress.addresses import Address
from sandboxd.egress.pump import can_pump, pump
from sandboxd.egress.targets import Target
from sandboxd.guest.ports import GuestStream
from sandboxd.guest.streams.unix_stream import UnixStream

BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@dataclass(slots=True)
class Traffic:
    """Bytes of one sandbox so far: into it and out of it."""

    in_bytes: int = 0
    out_bytes: int = 0


class Passage:
    """One connection from inside. `scope` ends it.

    target, address: where it leads once that is decided. moved: is told of bytes in and out, and
    when (the loop's clock).
    """

    def __init__(
        self, inside: ByteStream, *, name: str, moved: Callable[[int, int, float], None]
    ) -> None:
        self.inside = inside
        self.name = name
        self.scope = anyio.CancelScope()
        self.target: Target | None = None
        self.address: Address | None = None
        self.used_at = anyio.current_time()
        self._moved = moved

    def leads_to(self, target: Target, address: Address | None = None) -> None:
        """Say where it leads from now on."""
        self.target, self.address = target, address

    def moved(self, in_bytes: int, out_bytes: int) -> None:
        """Count bytes; they count as use."""
        self.used_at = anyio.current_time()
        self._moved(in_bytes, out_bytes, self.used_at)

    def metered(self, outside: ByteStream) -> ByteStream:
        """The stream outside, with every byte counted."""
        return _Metered(outside, self)

    async def tunnel(self, outside: ByteStream, early: bytes = b"") -> None:
        """Pass bytes both ways until both directions have ended. early: already read from inside.

        Each direction ends by itself. Closes neither stream.
        """
        bare = self._bare_ends(outside)
        if bare is not None:
            (inside, read), beyond = bare
            await pump(
                inside,
                beyond,
                first=early + read,
                into=lambda count: self.moved(count, 0),
                out=lambda count: self.moved(0, count),
            )
            return
        metered = self.metered(outside)
        async with anyio.create_task_group() as tasks:

            async def pass_on(source: ByteStream, sink: ByteStream, first: bytes) -> None:
                if not await _copy(source, sink, first):
                    tasks.cancel_scope.cancel()

            tasks.start_soon(pass_on, self.inside, metered, early, name=f"{self.name}-out")
            await pass_on(metered, self.inside, b"")

    def _bare_ends(
        self, outside: ByteStream
    ) -> tuple[tuple[socket.socket, bytes], socket.socket] | None:
        if not can_pump() or not isinstance(outside, UnixStream):
            return None
        inside = self.inside.bare() if isinstance(self.inside, GuestStream) else None
        return None if inside is None else (inside, outside.bare)


class _Metered(ByteStream):
    def __init__(self, inner: ByteStream, passage: Passage) -> None:
        self._inner = inner
        self._passage = passage

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._inner.extra_attributes

    async def receive(self, max_bytes: int = 1 << 18) -> bytes:
        data = await self._inner.receive(max_bytes)
        self._passage.moved(len(data), 0)
        return data

    async def send(self, item: bytes) -> None:
        await self._inner.send(item)
        self._passage.moved(0, len(item))

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _copy(source: ByteStream, sink: ByteStream, first: bytes) -> bool:
    """One direction, to its end, which is passed on. False: the source broke, so that nothing of
    the other direction can arrive either, and what was cut must not look ended.

    A sink that takes no more ends it too: what comes the other way may still be wanted.
    """
    data = first
    while True:
        try:
            if data:
                await sink.send(data)
        except BROKEN:
            return True
        try:
            data = await source.receive()
        except anyio.EndOfStream:
            break
        except BROKEN:
            return False
    with suppress(*BROKEN):
        await sink.send_eof()
    return True
