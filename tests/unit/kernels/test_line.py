"""The line to a kernel: what comes over it is an event, or the line is lost."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.guest.kernels import Channel, KernelEvent, KernelLine, Missing, Said, Sent
from sandboxd.guest.line import GuestLost
from sandboxd.wire.frames import FrameKind

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


class Pieces:
    """A stream that gives what it was given, piece by piece, and then ends."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = deque(pieces)

    async def receive(self, max_bytes: int) -> bytes:
        return self._pieces.popleft() if self._pieces else b""

    async def send(self, data: bytes) -> None:
        raise BrokenPipeError

    async def aclose(self) -> None:
        pass


def frame(kind: int, payload: bytes) -> bytes:
    return pack(">BI", kind, len(payload)) + payload


def said(seq: int, channel: int, *parts: bytes) -> bytes:
    body = b"".join(pack(">I", len(part)) + part for part in parts)
    return frame(FrameKind.MESSAGE, pack(">QB", seq, channel) + body)


def told(**facts: object) -> bytes:
    return frame(FrameKind.CONTROL, json.dumps(facts).encode())


async def events(data: bytes, *, cut: int = 1 << 20) -> tuple[list[KernelEvent], bool]:
    """What was read of it, and whether the line was lost."""
    pieces = [data[start : start + cut] for start in range(0, len(data), cut)]
    line = KernelLine(Pieces(pieces), b"")
    found: list[KernelEvent] = []
    with suppress(StopAsyncIteration):
        while True:
            try:
                found.append(await anext(line))
            except GuestLost:
                return found, True
    return found, False


async def test_events_are_read_however_they_were_cut() -> None:
    gap = {"seq": 3, "parent": "p", "channel": 1, "messages": 2, "bytes": 9}
    sent = {"msg_id": "m", "fresh": True}
    data = said(2, 2, b"a", b"", b"bc") + told(gap=gap) + told(sent=sent)
    for cut in (1, 2, 7, 1000):
        found, lost = await events(data, cut=cut)
        assert lost  # it ended before the kernel did
        assert found == [
            Said(2, Channel.IOPUB, (b"a", b"", b"bc")),
            Missing(3, "p", Channel.SHELL, messages=2, size=9),
            Sent("m", True, ""),
        ]


NONSENSE = {
    "a channel that is none": said(1, 9, b"a"),
    "a message without a head": frame(FrameKind.MESSAGE, b"123"),
    "a part beyond its message": frame(FrameKind.MESSAGE, pack(">QBI", 1, 1, 50) + b"x"),
    "half of a length": frame(FrameKind.MESSAGE, pack(">QB", 1, 1) + b"\0\0"),
    "too many parts": said(1, 1, *[b""] * 400),
    "no JSON": frame(FrameKind.CONTROL, b"{"),
    "nothing known": told(other=1),
    "a gap without a number": told(gap={"parent": "p", "channel": 1}),
    "a gap on no channel": told(gap={"seq": 1, "parent": "", "channel": 7, "messages": 1,
                                     "bytes": 1}),
    "an end that is none": told(ended={}),
    "another kind": frame(FrameKind.STDIN, b"x"),
    "no kind": frame(99, b"x"),
    "a frame without end": pack(">BI", FrameKind.MESSAGE, (1 << 32) - 1),
}  # fmt: skip


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_loses_the_line_and_tells_nothing(data: bytes) -> None:
    assert await events(data) == ([], True)


@given(data=st.binary(max_size=80))
async def test_no_bytes_break_more_than_the_line(data: bytes) -> None:
    _, lost = await events(data)
    assert lost
