"""Floods of many kernels at once: all together they hold up the event loop no longer than one."""

from __future__ import annotations

import time
from struct import pack

import anyio
import anyio.lowlevel
import pytest

from sandboxd.guest.kernels import KernelLine
from sandboxd.guest.line import GuestLost
from sandboxd.wire.frames import FrameKind
from tests.support.memory import seldom_collected

pytestmark = pytest.mark.anyio

_LINES = 40
_MESSAGES = 1000  # of each
_LONGEST_S = 0.05  # of this thread's own time; one turn of each line after the other took 0.2


class Poured:
    """A stream that has all that it was given at once, and then ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        self._at += max_bytes
        return self._data[self._at - max_bytes : self._at]

    async def send(self, data: bytes) -> None:
        raise BrokenPipeError

    async def aclose(self) -> None:
        pass


def flood() -> bytes:
    body = pack(">QB", 1, 2) + pack(">I", 500) + b"x" * 500
    return (pack(">BI", FrameKind.MESSAGE, len(body)) + body) * _MESSAGES


async def test_many_floods_hold_up_others_no_longer_than_one() -> None:
    longest = 0.0
    read = 0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await anyio.lowlevel.checkpoint()
            longest = max(longest, time.thread_time() - began)

    async def take(line: KernelLine) -> None:
        nonlocal read
        try:
            async for _ in line:
                read += 1
                ends = time.thread_time() + 0.00005  # what a reader does with it
                while time.thread_time() < ends:
                    pass
        except GuestLost:  # at its end
            return

    with seldom_collected():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            async with anyio.create_task_group() as readers:
                for _ in range(_LINES):
                    readers.start_soon(take, KernelLine(Poured(flood()), b""))
            tasks.cancel_scope.cancel()
    assert read == _LINES * _MESSAGES
    assert longest < _LONGEST_S
