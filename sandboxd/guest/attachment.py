"""A live two-way line to one command: its output in order, its input and signals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from sandboxd.guest.fields import Fields, loads, nonsense
from sandboxd.guest.frame_line import FrameLine
from sandboxd.guest.messages import read_exec, size_fields
from sandboxd.model.command import ExecRecord, TerminalSize
from sandboxd.wire.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameKind,
    encode,
    split_piece,
)

OutputStream = Literal["stdout", "stderr"]

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


class Attachment(FrameLine[OutputEvent]):
    """Iterate for events until `Ended`; the guest holds the command back for who reads slowly.
    After a cut attach again after the last `seq` seen.
    """

    _followed = "command"

    def _read(self, frame: Frame) -> OutputEvent:
        return _read_event(frame)

    def _is_last(self, event: OutputEvent) -> bool:
        return isinstance(event, Ended)

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
