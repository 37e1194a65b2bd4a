"""A kernel's channels as one Jupyter client has them: what it sends, and what it is to hear.

Each client has a line of its own to the guest, which keeps what a kernel says: one that is slow
holds up nobody, and finds out what it missed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
from anyio import CapacityLimiter, to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from jupyter_client.session import DELIM

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import (
    LARGEST_MESSAGE,
    Channel,
    KernelEnded,
    KernelLine,
    Missing,
    Said,
)
from sandboxd.guest.line import GuestLost
from sandboxd.kernels.jupyter import frames
from sandboxd.kernels.jupyter.frames import Order
from sandboxd.kernels.jupyter.visits import Visit
from sandboxd.kernels.live import LiveKernel
from sandboxd.kernels.messages import Message, NoMessage, Writer, written
from sandboxd.kernels.processes import Process
from sandboxd.kernels.requests import cell_id_of
from sandboxd.kernels.talk import is_own
from sandboxd.leases.desk import Desk
from sandboxd.model.ids import new_id
from sandboxd.model.kernel import KernelState
from sandboxd.wire.codes import ErrorCode

MOST_WAITING = 1000  # requests of one client
MOST_WAITING_BYTES = 32 << 20
BESIDE_BYTES = 1 << 18  # what is longer is read and written beside the event loop

_MOST_ASKED = 10_000  # requests whose answers are known to be its own
_MOST_SESSIONS = 16
_CLIENT = "client."  # begins the ids of requests that may be given again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_TOLD = {KernelState.RESTARTING, KernelState.DEAD}


class Crowded(Exception):
    """The client asks for more than may wait."""


class Lagged(Exception):
    """The client took so little for so long that messages for it are no longer kept.

    too_large: it was one message that is larger than any that is kept.
    """

    def __init__(self, missing: Missing) -> None:
        self.too_large = missing.messages == 1 and missing.size >= LARGEST_MESSAGE
        super().__init__(
            "a message of the kernel is too large"
            if self.too_large
            else f"{missing.messages} messages were not taken in time and are lost"
        )


@dataclass(frozen=True, slots=True)
class Heard:
    """A message for a client. parts: header, parent, metadata, content as JSON, and buffers."""

    channel: Channel
    header: Mapping[str, Any]
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.parts))


class Channels:
    """One client at one kernel. `work` must run for its requests to be passed on.

    heard: the id of the last message that it heard, where it keeps count itself: then it may give a
    request again, which the kernel has once, and finds its place after a restart of the daemon too.
    """

    def __init__(
        self, desk: Desk, kernel: LiveKernel, visit: Visit, *, heard: str | None = None
    ) -> None:
        self.visit = visit
        self._keeps_count = heard is not None
        self._heard = ""  # what is to be passed by, up to that message
        self._desk = desk
        self._kernel = kernel
        self._tenancy = kernel.tenancy
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._sessions = {visit.session} - {""}
        self._live_from = 0  # what is lost before that was so before the client came
        self._thread = CapacityLimiter(1)
        self._requests: MemoryObjectSendStream[Order]
        self._taken: MemoryObjectReceiveStream[Order]
        self._requests, self._taken = anyio.create_memory_object_stream[Order](MOST_WAITING)
        self._waiting_bytes = 0
        self._begin(heard or "")

    def _begin(self, heard: str) -> None:
        """A session that comes back hears on from where it was, any other from now on."""
        process, talk = self._kernel.present, self._kernel.talk
        if process is None or talk is None:
            return
        self._live_from = talk.seq
        if self.visit.process != process.name:
            self.visit.process, self.visit.seq = process.name, 0 if heard else talk.seq
            self._heard = heard

    # What it sends.

    async def take(self, order: Order) -> None:
        """A message of the client's: in order on each channel, and no channel waits for another.

        Raises Crowded; `bad_request` for an id that is ours; `timeout` where the kernel was not
        reached. Nothing happens where there is no kernel to take it: a `status` says so.
        """
        if is_own(order.id) or cell_id_of(order.id):
            raise SandboxdError(ErrorCode.BAD_REQUEST, f"give another msg_id than {order.id!r:.99}")
        self._tenancy.touch(anyio.current_time())
        self._remember(order)
        if order.channel is not Channel.SHELL:
            await self._pass_on(order)
            return
        try:
            self._requests.send_nowait(order)
        except anyio.WouldBlock:
            raise Crowded(f"{MOST_WAITING} requests wait") from None
        self._waiting_bytes += order.size
        if self._waiting_bytes > MOST_WAITING_BYTES:
            raise Crowded(f"requests of {self._waiting_bytes} bytes wait")

    def _remember(self, order: Order) -> None:
        self._asked[order.id] = None
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)
        if order.session and len(self._sessions) < _MOST_SESSIONS:
            self._sessions.add(order.session)

    async def work(self) -> None:
        """Pass its requests on, behind the cells that were there before. Until cancelled."""
        async for order in self._taken:
            self._waiting_bytes -= order.size
            if order.kind != "execute_request":
                await self._pass_on(order)
                continue
            await self._kernel.turn()
            began = self._kernel.visits.begin(order.id)
            given = False
            try:
                given = await self._pass_on(order)
            finally:
                if began and not given:
                    self._kernel.visits.end(order.id)

    async def _pass_on(self, order: Order) -> bool:
        """Give it to the kernel; False if that takes none, or had it before."""
        await self._kernel.ready.wait()
        talk = self._kernel.talk
        if talk is None or self._kernel.death is not None:
            return False
        msg_id = f"{_CLIENT}{order.id}" if self._keeps_count else new_id("msg")
        try:
            return await talk.send_signed(order.channel, msg_id, order.parts)
        except SandboxdError as error:
            if error.code is not ErrorCode.KERNEL_DIED:
                raise
            return False

    # What it is to hear.

    async def heard(self) -> AsyncGenerator[Heard, None]:
        """What the kernel says, from process to process, until it is shut down. Raises Lagged, and
        what became of the sandbox.
        """
        before: str | None = None
        told: KernelState | None = None
        while True:
            changed, state = self._kernel.changed, self._kernel.state
            process = self._kernel.present
            if process is None or process.name == before:
                if self._tenancy.lease.over:
                    raise self._tenancy.over_error()
                if state in _TOLD and state is not told:
                    told = state
                    yield _status(state)
                if self._kernel.over.is_set():
                    return
                await changed.wait()
                continue
            if before is not None and told is not KernelState.RESTARTING:
                yield _status(KernelState.RESTARTING)
            if self.visit.process != process.name:
                self.visit.process, self.visit.seq = process.name, 0
            async with aclosing(self._of(process)) as said:
                async for each in said:
                    yield each
            before, told = process.name, None

    async def _of(self, process: Process) -> AsyncGenerator[Heard, None]:
        """What one process says, until it has ended."""
        writer = Writer(process.guest.key)
        pause_s = _FIRST_PAUSE_S
        while True:
            seq = self.visit.seq
            try:
                async with (
                    self._desk.guest_of(self._tenancy) as guest,
                    guest.kernels.attach(process.name, after=seq) as line,
                    aclosing(self._on(line, writer)) as said,
                ):
                    async for each in said:
                        yield each
                return
            except GuestLost:
                pass
            more = self.visit.seq > seq
            pause_s = _FIRST_PAUSE_S if more else min(2 * pause_s, _LONGEST_PAUSE_S)
            await anyio.sleep(pause_s)

    async def _on(self, line: KernelLine, writer: Writer) -> AsyncGenerator[Heard, None]:
        async for event in line:
            match event:
                case Said():
                    if event.seq > self._live_from:
                        self._heard = ""  # that was longer ago than anything is kept
                    if (said := await self._reading(event, writer)) is not None:
                        yield said
                    self.visit.seq = event.seq
                case Missing():
                    self.visit.seq = event.seq
                    if event.seq > self._live_from:
                        raise Lagged(event)
                case KernelEnded():
                    return
                case _:
                    pass

    async def _reading(self, said: Said, writer: Writer) -> Heard | None:
        """Large ones beside the event loop: that their JSON is valid takes its time."""
        if sum(map(len, said.parts)) <= BESIDE_BYTES:
            return self._read(said, writer)
        return await to_thread.run_sync(self._read, said, writer, limiter=self._thread)

    def _read(self, said: Said, writer: Writer) -> Heard | None:
        """None for what is not for this client."""
        if said.channel is Channel.SENT:
            return None
        try:
            message = writer.read(said)
        except NoMessage:
            return None
        if self._heard:
            self._heard = "" if message.id == self._heard else self._heard
            return None
        if not self._is_for_us(message):
            return None
        parts = said.parts[said.parts.index(DELIM) + 2 :]
        if not message.exact:  # a client would stumble over it
            read = (message.header, message.parent, message.metadata, message.content)
            parts = (*map(written, read), *message.buffers)
        return Heard(message.channel, message.header, parts)

    def _is_for_us(self, message: Message) -> bool:
        if is_own(message.parent_id):
            return False
        return (
            message.channel is Channel.IOPUB
            or message.parent_id in self._asked
            or message.parent_session in self._sessions
        )


def _status(state: KernelState) -> Heard:
    date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    header, parts = frames.status(state, msg_id=new_id("msg"), date=date)
    return Heard(Channel.IOPUB, header, parts)
