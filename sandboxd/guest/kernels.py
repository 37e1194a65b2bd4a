"""Kernels in a box, as its guest holds them: started, signalled, and a line to each.

Knows that messages have parts and parents; what they mean is for who reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import anyio
import anyio.lowlevel

from sandboxd.guest.fields import Fields, loads, nonsense
from sandboxd.guest.frame_line import FrameLine, open_frame_line
from sandboxd.guest.line import Line
from sandboxd.guest.messages import claim_fields, read_exec
from sandboxd.model.claim import Claim
from sandboxd.model.command import ExecRecord
from sandboxd.wire.frames import Frame, FrameKind, encode
from sandboxd.wire.http1 import AsyncStream

LARGEST_MESSAGE = 16 << 20

_MAX_LIST_BYTES = 16 << 20
_MAX_PARTS = 300
# Of the loop's time that all floods together may take before others have their turn, and what each
# has at least: as the first turn of all, for many may begin at once.
_TURN_S, _LEAST_TURN_S = 0.005, 0.00025
_FLOODS: WeakSet[KernelLine] = WeakSet()  # lines that used up their last turn
_FRAME_BYTES = LARGEST_MESSAGE + (1 << 16)  # a whole message, and the lengths of its parts
_HEAD = Struct(">QB")
_LENGTH = Struct(">I")


class Channel(IntEnum):
    """A kernel's sockets; SENT is what it was sent before the line was opened, on any of them."""

    SENT = 0
    SHELL = 1
    IOPUB = 2
    STDIN = 3
    CONTROL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStart:
    """A kernel process. In argv `{connection_file}` stands for the file that tells it its sockets.

    like: a kernel that was started before; all that is not said here is as it was there, variables
    one by one. note: small JSON that the guest gives back. expected: stands in for the claim of a
    box that nobody has claimed yet.
    """

    kernel_id: str
    argv: tuple[str, ...] = ()
    like: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""
    user: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)
    expected: Claim | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestKernel:
    """A kernel process as its guest has it. key: its messages are signed with it. last_seq: of the
    newest message. record: of the process.
    """

    kernel_id: str
    alive: bool
    key: str = field(repr=False)
    note: Mapping[str, Any]
    last_seq: int
    record: ExecRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a kernel lacks that was started before its box was claimed.

    unset: variables that it has too many. cwd: empty where it is there already. anew: it can never
    have it, for it has another user's rights, or other limits.
    """

    env: Mapping[str, str] = field(repr=False)
    unset: tuple[str, ...]
    cwd: str
    anew: bool


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the kernel, its parts as they came."""

    seq: int
    channel: Channel
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages that answer `parent` and are no longer kept, or were too much to keep."""

    seq: int
    parent: str
    channel: Channel
    messages: int
    size: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message for the kernel. fresh: False for an id that it was sent before.
    error: why it could not be sent; empty if it was.
    """

    msg_id: str
    fresh: bool
    error: str


@dataclass(frozen=True, slots=True)
class KernelEnded:
    """The process has ended, and nothing comes any more. The record has its own output."""

    record: ExecRecord


KernelEvent = Said | Missing | Sent | KernelEnded


class KernelLine(FrameLine[KernelEvent]):
    """Iterate for what the kernel says, until `KernelEnded`. After a cut attach again after the
    last `seq` seen. A flood lets others have their turn.
    """

    _followed = "kernel"
    _read_bytes = 1 << 16  # which is taken apart without a break

    def __init__(self, stream: AsyncStream, early: bytes) -> None:
        super().__init__(stream, early, limit=_FRAME_BYTES)
        self._turn_ends = 0.0

    async def __anext__(self) -> KernelEvent:
        """The next event. Raises GuestLost."""
        if not self._frames:  # a receive lets others run
            _FLOODS.discard(self)
            self._turn_ends = 0.0
        elif self._turn_ends == 0.0:
            self._begin_turn()
        elif anyio.current_time() > self._turn_ends:
            _FLOODS.add(self)
            await anyio.lowlevel.checkpoint()
            self._begin_turn()
        return await super().__anext__()

    def _begin_turn(self) -> None:
        share_s = _TURN_S / len(_FLOODS) if self in _FLOODS else 0.0
        turn_s = max(_LEAST_TURN_S, share_s)
        self._turn_ends = anyio.current_time() + turn_s

    def _read(self, frame: Frame) -> KernelEvent:
        return _read_event(frame)

    def _is_last(self, event: KernelEvent) -> bool:
        return isinstance(event, KernelEnded)

    async def send(self, channel: Channel, msg_id: str, parts: Iterable[bytes]) -> None:
        """Send a message; `Sent` tells what became of it. Raises GuestLost, and FrameError for one
        that is too large.
        """
        name = msg_id.encode()
        body = bytearray((channel, len(name)))
        body += name
        for part in parts:
            body += _LENGTH.pack(len(part))
            body += part
        await self._send(encode(FrameKind.SEND, bytes(body), limit=LARGEST_MESSAGE))


class GuestKernels:
    """Calls about the kernels of one guest; they raise as those of `Guest` do."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def start(self, order: KernelStart) -> GuestKernel:
        """Create or attach, by id alone. Returns once the process runs or could not be started.

        `busy` where too many kernels run already.
        """
        body: dict[str, Any] = {
            "argv": list(order.argv),
            "like": order.like,
            "env": dict(order.env),
            "cwd": order.cwd,
            "user": order.user,
            "note": dict(order.note),
        }
        if order.expected is not None:
            body["expected"] = claim_fields(order.expected)
        answer = await self._line.call("PUT", _kernel(order.kernel_id), json.dumps(body).encode())
        return _read_kernel(loads(answer.body))

    async def list(self) -> list[GuestKernel]:
        """All kernels, dead ones too, oldest first."""
        answer = await self._line.call("GET", "/v1/kernels", limit=_MAX_LIST_BYTES)
        return [_read_kernel(said) for said in loads(answer.body).each("kernels")]

    async def signal(self, kernel_id: str, name: str) -> bool:
        """Signal a kernel and its children, like `INT`; `KILL` takes its whole tree and returns
        once that is dead. False: it had ended.
        """
        body = json.dumps({"signal": name}).encode()
        target = f"{_kernel(kernel_id)}/signal"
        answer = await self._line.call("POST", target, body, repeatable=False)
        return loads(answer.body).flag("delivered")

    async def take(
        self, kernel_id: str, *, env: Mapping[str, str], cwd: str, note: Mapping[str, Any]
    ) -> tuple[bool, Changes]:
        """Give a kernel from before the claim to whoever wants it now, as if it were started so:
        whether it lives, and what it lacks. Taken twice is as good as once.
        """
        body = json.dumps({"env": dict(env), "cwd": cwd, "note": dict(note)}).encode()
        answer = await self._line.call(
            "POST", f"{_kernel(kernel_id)}/take", body, limit=_MAX_LIST_BYTES
        )
        said = loads(answer.body)
        return said.text("state", limit=16) != "dead", _read_changes(said.inner("changes"))

    async def forget(self, kernel_id: str) -> None:
        """Forget a kernel that has ended, and all that it said. `busy` while it runs."""
        await self._line.call("DELETE", _kernel(kernel_id))

    def attach(self, kernel_id: str, *, after: int = 0) -> AbstractAsyncContextManager[KernelLine]:
        """A line to a kernel: what it said after that seq, then live. It opens once the kernel's
        sockets are open, or its process has ended. Leaving lets it live on.
        """
        target = f"{_kernel(kernel_id)}/attach?after={after}"
        return open_frame_line(self._line, target, KernelLine)


def _kernel(kernel_id: str) -> str:
    return "/v1/kernels/" + quote(kernel_id, safe="")


def _read_event(frame: Frame) -> KernelEvent:
    if frame.kind is FrameKind.MESSAGE:
        return _read_message(frame.payload)
    if frame.kind is not FrameKind.CONTROL:
        raise nonsense("frame")
    said = loads(frame.payload)
    if "sent" in said:
        sent = said.inner("sent")
        return Sent(sent.text("msg_id"), sent.flag("fresh"), sent.optional_text("error") or "")
    if "gap" in said:
        gap = said.inner("gap")
        return Missing(
            gap.count("seq"),
            gap.text("parent"),
            _channel(gap.count("channel")),
            messages=gap.count("messages"),
            size=gap.count("bytes"),
        )
    if "ended" in said:
        return KernelEnded(read_exec(said.inner("ended")))
    raise nonsense("frame")


def _read_message(payload: bytes) -> Said:
    if len(payload) < _HEAD.size:
        raise nonsense("message")
    seq, number = _HEAD.unpack_from(payload)
    parts: list[bytes] = []
    at = _HEAD.size
    while at < len(payload):
        if at + _LENGTH.size > len(payload) or len(parts) >= _MAX_PARTS:
            raise nonsense("message")
        (size,) = _LENGTH.unpack_from(payload, at)
        at += _LENGTH.size
        if at + size > len(payload):
            raise nonsense("message")
        parts.append(payload[at : at + size])
        at += size
    return Said(seq, _channel(number), tuple(parts))


def _channel(number: int) -> Channel:
    try:
        return Channel(number)
    except ValueError:
        raise nonsense("channel") from None


def _read_changes(said: Fields) -> Changes:
    return Changes(
        env=said.texts("env"),
        unset=tuple(said.names("unset")),
        cwd=said.text("cwd"),
        anew=said.flag("anew"),
    )


def _read_kernel(said: Fields) -> GuestKernel:
    state = said.text("state", limit=16)
    note = said.plain("note")
    if not isinstance(note, dict):
        raise nonsense("note")
    return GuestKernel(
        kernel_id=said.text("kernel_id", limit=128),
        alive=state != "dead",
        key=said.text("key", limit=256),
        note=note,
        last_seq=said.count("seq"),
        record=read_exec(said.inner("exec")),
    )
