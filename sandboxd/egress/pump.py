"""Bytes between two sockets, moved in the loop's own callbacks.

A task that is woken for each piece costs a tenth of a millisecond, so that five hundred tunnels
which all speak at once would hold the loop up for as many pieces; a callback costs a tenth of that.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - callbacks for sockets are the loop's; elsewhere `Passage` copies
import socket
from collections.abc import Callable
from contextlib import suppress

import anyio

_PIECE_BYTES = 1 << 17

Count = Callable[[int], None]


def can_pump() -> bool:
    """Whether the loop that runs is asyncio's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def pump(
    inside: socket.socket, outside: socket.socket, *, first: bytes, into: Count, out: Count
) -> None:
    """Pass bytes both ways until both directions have ended, or a side broke. Closes neither.

    first: what was read from inside already. into, out: are told how many bytes were passed on.
    Cancelled: what was not passed on is lost. Needs asyncio's loop; nothing else may wait for these
    sockets meanwhile.
    """
    ended = anyio.Event()
    ways = (_Way(inside, outside, first, out), _Way(outside, inside, b"", into))

    def settle() -> None:
        if all(way.done for way in ways) or any(way.cut for way in ways):
            ended.set()

    try:
        for way in ways:
            way.start(settle)
        await ended.wait()
    finally:
        for way in ways:
            way.stop()


class _Way:
    """One direction. done: nothing more will pass. cut: its source broke, and so the other way."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, first: bytes, count: Count
    ) -> None:
        self.done = self.cut = False
        self._source = source
        self._sink = sink
        self._rest = memoryview(first)
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._settle: Callable[[], None] = _nothing

    def start(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._pass_on(self._rest)

    def stop(self) -> None:
        """Leave both sockets alone. Idempotent."""
        for remove, end in (
            (self._loop.remove_reader, self._source),
            (self._loop.remove_writer, self._sink),
        ):
            if end.fileno() >= 0:
                remove(end)

    def _readable(self) -> None:
        try:
            data = self._source.recv(_PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(cut=True)  # what was cut must not look ended
            return
        if data:
            self._pass_on(memoryview(data), reading=True)
            return
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        self._end(cut=False)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sink)
        self._pass_on(self._rest)

    def _pass_on(self, data: memoryview, *, reading: bool = False) -> None:
        """Send what the sink takes now. The source is read again once it has taken all."""
        sent = 0
        try:
            if data:
                sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(cut=False)  # what comes the other way may still be wanted
            return
        if sent:
            self._count(sent)
        self._rest = data[sent:]
        if self._rest:
            if reading:
                self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._writable)
        elif not reading:
            self._loop.add_reader(self._source, self._readable)

    def _end(self, *, cut: bool) -> None:
        self.stop()
        self.done, self.cut = True, cut
        self._settle()


def _nothing() -> None:
    return
