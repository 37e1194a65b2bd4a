"""The conversation with one kernel process: one line, come by again whenever it is cut.

Every message is heard once, in order. Knows nothing of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import (
    Channel,
    GuestKernel,
    KernelEnded,
    KernelEvent,
    KernelLine,
    Missing,
    Said,
    Sent,
)
from sandboxd.guest.line import GuestLost
from sandboxd.kernels import verdicts
from sandboxd.kernels.early.binding import failure
from sandboxd.kernels.messages import Message, NoMessage, Writer
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_SEND_S = 30.0
_END_S = 10.0  # for the end of a kernel that takes nothing any more
_OWN = "own"  # begins the ids of requests that are nobody's but ours
READY = "own-ready"  # of the last one before a kernel takes cells


class Talk:
    """See the module. heard, missed: told of each message, and of messages that are lost with the
    id of what they answered. Both synchronous.

    caught_up: what was said before the talk began was heard. was_ready: and the kernel was found
    ready by an earlier talk. ended: how its process did, once it has.
    """

    def __init__(
        self,
        desk: Desk,
        tenancy: Tenancy,
        process: GuestKernel,
        *,
        heard: Callable[[Message], None],
        missed: Callable[[Missing], None],
    ) -> None:
        self.name = process.kernel_id
        self.caught_up = anyio.Event()
        self.was_ready = False
        self.ended: ExecRecord | None = None
        self._past = process.last_seq
        self._desk = desk
        self._tenancy = tenancy
        self._writer = Writer(process.key)
        self._heard, self._missed = heard, missed
        self._seq = 0
        self._line: KernelLine | None = None
        self._up = anyio.Event()
        self._over = anyio.Event()
        self._answers: dict[str, _Answer] = {}
        self._questions: dict[str, _Question] = {}

    @property
    def seq(self) -> int:
        """Of the newest message that it heard."""
        return self._seq

    async def run(self) -> ExecRecord:
        """Listen until the process has ended; how it did. Raises what `Desk.explain` raises once
        the sandbox is gone.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            seq = self._seq
            try:
                if (record := await self._listen()) is not None:
                    self._end(record)
                    return record
            except GuestLost as lost:
                log.info("kernel.line_cut", kernel=self.name, error=str(lost))
            finally:
                self._hang_up()
            pause_s = _FIRST_PAUSE_S if self._seq > seq else min(2 * pause_s, _LONGEST_PAUSE_S)
            await anyio.sleep(pause_s)

    async def _listen(self) -> ExecRecord | None:
        async with (
            self._desk.guest_of(self._tenancy) as guest,
            guest.kernels.attach(self.name, after=self._seq) as line,
        ):
            self._line = line
            self._up.set()
            self._look_up()
            async for event in line:
                if isinstance(event, KernelEnded):
                    return event.record
                self._take(event)
                self._look_up()
        return None

    def _take(self, event: KernelEvent) -> None:
        match event:
            case Said(seq=seq):
                self._seq = seq
                try:
                    message = self._writer.read(event)
                except NoMessage as error:
                    log.debug("kernel.noise", kernel=self.name, error=str(error))
                    return
                self._hear(message)
            case Missing(seq=seq):
                self._seq = seq
                self._missed(event)
            case Sent(msg_id=msg_id):
                answer = self._answers.get(msg_id)
                if answer is not None:
                    answer.sent = event
                    answer.settled.set()
            case KernelEnded():
                pass

    def _hear(self, message: Message) -> None:
        question = self._questions.get(message.parent_id)
        if question is not None:
            question.hear(message)
        elif message.parent_id == READY:
            self.was_ready |= message.channel is Channel.SHELL and failure(message) is None
        elif not is_own(message.parent_id):
            self._heard(message)

    def _end(self, record: ExecRecord) -> None:
        self.ended = record
        self._over.set()
        self.caught_up.set()
        for question in self._questions.values():
            question.answered.set()

    def _look_up(self) -> None:
        if self._seq >= self._past:
            self.caught_up.set()

    def _hang_up(self) -> None:
        """Whoever waits to hear that a message was sent sends it again: its id makes it once."""
        self._line = None
        self._up = anyio.Event()
        for answer in self._answers.values():
            answer.settled.set()

    async def send(
        self,
        channel: Channel,
        kind: str,
        content: Mapping[str, Any],
        *,
        msg_id: str,
        parent: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Send a message, once for its id; whether it was new. Returns once the kernel has it.

        Raises `kernel_died` where it takes none, `timeout` after 30 s.
        """
        parts = self._writer.parts(kind, content, msg_id=msg_id, parent=parent, metadata=metadata)
        return await self._deliver(channel, msg_id, parts)

    async def ask(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        within_s: float,
        msg_id: str = "",
        seen: bool = False,
    ) -> Message:
        """The reply to a request of ours on its shell, behind what runs there. Nobody else hears
        of it. seen: what it shows of it is to have come in too.

        Raises `timeout`, and `kernel_died` where it dies before.
        """
        msg_id = msg_id or new_id("own")
        question = self._questions[msg_id] = _Question(seen=seen)
        given = False
        try:
            with anyio.fail_after(within_s):
                await self.send(Channel.SHELL, kind, content, msg_id=msg_id)
                given = True
                if self.ended is None:
                    await question.answered.wait()
        except TimeoutError:
            raise (verdicts.mute(within_s) if given else _not_reached(within_s)) from None
        finally:
            del self._questions[msg_id]
        if question.reply is None:
            assert self.ended is not None
            raise verdicts.death(self.ended)
        return question.reply

    async def send_signed(self, channel: Channel, msg_id: str, parts: Sequence[bytes]) -> bool:
        """The same for header, parent, metadata, content and buffers that somebody else wrote."""
        return await self._deliver(channel, msg_id, self._writer.sign(parts))

    async def _deliver(self, channel: Channel, msg_id: str, parts: list[bytes]) -> bool:
        try:
            with anyio.fail_after(_SEND_S):
                sent = await self._try_to_deliver(channel, msg_id, parts)
                again = sent is None  # then it may have come the first time
                while sent is None:
                    sent = await self._try_to_deliver(channel, msg_id, parts)
        except TimeoutError:
            raise _not_reached(_SEND_S) from None
        if sent.error:
            raise await self._taken_by_nobody(sent.error)
        return sent.fresh or again

    async def _taken_by_nobody(self, why: str) -> SandboxdError:
        """What a message is answered that the kernel did not take; its end is about to come."""
        with anyio.move_on_after(_END_S):
            await self._over.wait()
        return verdicts.takes_nothing(why) if self.ended is None else verdicts.death(self.ended)

    async def _try_to_deliver(
        self, channel: Channel, msg_id: str, parts: list[bytes]
    ) -> Sent | None:
        await self._up.wait()
        line = self._line
        if line is None:  # cut in the meantime
            return None
        answer = self._answers[msg_id] = _Answer()
        try:
            await line.send(channel, msg_id, parts)
            await answer.settled.wait()
        except GuestLost:
            return None
        finally:
            if self._answers.get(msg_id) is answer:
                del self._answers[msg_id]
        return answer.sent


def is_own(message_id: str) -> bool:
    """Whether a request of that id is nobody's but ours."""
    return message_id.startswith(_OWN)


def _not_reached(within_s: float) -> SandboxdError:
    return SandboxdError(ErrorCode.TIMEOUT, f"the kernel was not reached for {within_s:g} s")


class _Question:
    """A request of our own, and what has come of it."""

    __slots__ = ("_seen", "answered", "reply")

    def __init__(self, *, seen: bool) -> None:
        self.reply: Message | None = None
        self.answered = anyio.Event()
        self._seen = not seen

    def hear(self, message: Message) -> None:
        """Take a message that answers it."""
        if message.channel is Channel.SHELL:
            self.reply = message
        self._seen |= message.channel is Channel.IOPUB
        if self.reply is not None and self._seen:
            self.answered.set()


class _Answer:
    """What the guest says of a message that was sent to it; None where the line was cut."""

    __slots__ = ("sent", "settled")

    def __init__(self) -> None:
        self.sent: Sent | None = None
        self.settled = anyio.Event()
