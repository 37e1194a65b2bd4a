"""A live two-way line to one command: its output in order, its input and signals."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import anyio

from sandboxd.guest.fields import Fields, loads, nonsense
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import read_exec, size_fields
from sandboxd.model.command import ExecRecord, TerminalSize
from sandboxd.wire.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode,
    split_piece,
)
from sandboxd.wire.http1 import AsyncStream

OutputStream = Literal["stdout", "stderr"]

_READ_BYTES = 1 << 18
_STREAMS: dict[str, OutputStream] = {"stdout": "stdout", "stderr": "stderr"}


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs since `started_at` (Unix seconds). First of all, unless resumed later."""

    seq: int
    started_at: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stream at `offset`. Text is cut at character borders."""

    stream: OutputStream
    seq: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of one stream that were not kept, from `offset` on."""

    stream: OutputStream
    seq: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The command ended; its record is without output. Nothing comes after it."""

    seq: int
    record: ExecRecord


OutputEvent = Started | Piece | Gap | Ended


class Attachment(AsyncIterator[OutputEvent]):
    """Iterate for events until `Ended`; the guest holds the command back for who reads slowly.

    Raises GuestLost if the line is cut before `Ended`: attach again after the last `seq` seen. One
    reader; sends may come from other tasks. A cancelled read loses nothing, a cancelled send
    closes the line.
    """

    def __init__(self, stream: AsyncStream, early: bytes) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()
        self._early = early
        self._frames: deque[Frame] = deque()
        self._ended = False
        # Frames of two senders must not mix.
        self._sending = anyio.Lock()

    async def __anext__(self) -> OutputEvent:
        """The next event. Raises GuestLost."""
        if self._ended:
            raise StopAsyncIteration
        try:
            while not self._frames:
                self._frames.extend(self._decoder.feed(await self._receive()))
            event = _read_event(self._frames.popleft())
        except FrameError as error:
            raise GuestLost(str(error), sent=True) from error
        self._ended = isinstance(event, Ended)
        return event

    async def send_stdin(self, data: bytes) -> None:
        """Write to the command's input; waits while its buffer is full. Raises GuestLost."""
        for start in range(0, len(data), MAX_PAYLOAD_BYTES):
            await self._send(encode(FrameKind.STDIN, data[start : start + MAX_PAYLOAD_BYTES]))

    async def close_stdin(self) -> None:
        """End the command's input; a terminal is told its end of file. Raises GuestLost."""
        await self._send(encode(FrameKind.STDIN))

    async def send_signal(self, name: str) -> None:
        """Signal the command, like `INT`. Behind input that waits: use `Guest.signal` then."""
        await self._send(encode(FrameKind.CONTROL, json.dumps({"signal": name}).encode()))

    async def send_resize(self, size: TerminalSize) -> None:
        """Set its terminal's size, if it has one. Behind input that waits: use `Guest.resize`."""
        await self._send(
            encode(FrameKind.CONTROL, json.dumps({"resize": size_fields(size)}).encode())
        )

    async def aclose(self) -> None:
        """Let go of the line; the command runs on. Idempotent, never waits."""
        self._ended = True
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    async def _receive(self) -> bytes:
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            data = await self._stream.receive(_READ_BYTES)
        except OSError as error:
            raise GuestLost(str(error), sent=True) from error
        if not data:
            raise GuestLost("the line was cut before the command ended", sent=True)
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


def _read_event(frame: Frame) -> OutputEvent:
    match frame.kind:
        case FrameKind.STDOUT:
            return Piece("stdout", *split_piece(frame.payload))
        case FrameKind.STDERR:
            return Piece("stderr", *split_piece(frame.payload))
        case FrameKind.CONTROL:
            return _read_control(loads(frame.payload))
        case FrameKind.STDIN | FrameKind.SEND | FrameKind.MESSAGE:
            raise nonsense("frame")


def _read_control(said: Fields) -> OutputEvent:
    if "started" in said:
        started = said.inner("started")
        return Started(started.count("seq"), started.number("started_at"))
    if "gap" in said:
        gap = said.inner("gap")
        stream = _STREAMS.get(gap.text("stream", limit=16))
        if stream is None:
            raise nonsense("stream")
        return Gap(stream, gap.count("seq"), gap.count("offset"), gap.count("bytes"))
    if "ended" in said:
        ended = said.inner("ended")
        return Ended(ended.count("seq"), read_exec(ended.inner("exec")))
    raise nonsense("frame")
