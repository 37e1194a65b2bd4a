"""The processes of one kernel, one after the other, and the talk with the present one.

Knows nothing of cells: what the processes say goes to whoever listens.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import Channel, Missing
from sandboxd.kernels import verdicts
from sandboxd.kernels.early.proofs import Way, way_of
from sandboxd.kernels.messages import Message
from sandboxd.kernels.processes import Process, Processes
from sandboxd.kernels.talk import Talk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.kernel import KernelOrder
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_PAST_S = 30.0  # to read what a process said that ended before this daemon


class Succession:
    """See the module. heard, missed: as of Talk; ended: told when a process has.

    waits: the first of them runs from before the lease, until `take` says whose it is. proven:
    ways to start a kernel that have worked in this sandbox, so that its image has what they need.
    """

    def __init__(
        self,
        order: KernelOrder,
        *,
        tenancy: Tenancy,
        processes: Processes,
        heard: Callable[[Message], None],
        missed: Callable[[Missing], None],
        ended: Callable[[], None],
        proven: set[Way],
        waits: bool,
    ) -> None:
        self.order = order
        self.process: Process | None = None
        self.talk: Talk | None = None
        self._proven = proven
        self._tenancy = tenancy
        self._processes = processes
        self._heard, self._missed, self._told_end = heard, missed, ended
        self._taken = anyio.Event()
        if not waits:
            self._taken.set()

    @property
    def waits(self) -> bool:
        """Whether it runs from before the lease, and nobody has taken it yet."""
        return not self._taken.is_set()

    def take(self, order: KernelOrder) -> None:
        """Whoever wants it first says what it is called and what it runs with."""
        self.order = order
        self._taken.set()

    @property
    def ended(self) -> ExecRecord | None:
        """How its present process did, once it has."""
        return None if self.talk is None else self.talk.ended

    async def read_past(self, process: Process) -> ExecRecord | None:
        """Hear what a process said that has been replaced; how it ended. None: not in time."""
        talk = self._speak(process)
        record = None
        with anyio.move_on_after(_PAST_S):
            record = await talk.run()
        if talk.was_ready:
            self._proven.add(way_of(self.order))
        return record

    async def begin(self, tasks: TaskGroup) -> None:
        """Start the first process; returns once it takes cells. Raises `start_failed`."""
        await self.follow(tasks, await self._processes.start(self._tenancy, self.order))

    async def begin_anew(self, tasks: TaskGroup) -> None:
        """Start the next process in the place of the present one, if there is one. As `begin`."""
        if self.process is None:
            await self.begin(tasks)
            return
        self.talk = None
        await self._processes.kill(self._tenancy, self.process)
        anew = await self._processes.start_anew(self._tenancy, self.order, self.process)
        await self.follow(tasks, anew)

    async def follow(self, tasks: TaskGroup, process: Process) -> None:
        """As `begin`, for a process that runs."""
        await self._follow(tasks, process)
        self._proven.add(way_of(self.order))

    async def _follow(self, tasks: TaskGroup, process: Process) -> None:
        """Speak with a process from now on; returns once it takes cells. Raises `start_failed`."""
        self.process, self.talk = process, self._speak(process)
        talk = self.talk
        tasks.start_soon(self._listen, talk, name=f"kernel-{talk.name}")
        if process.early:
            if not await self._is_given(talk, process):
                await self.begin_anew(tasks)
            return
        await talk.caught_up.wait()
        if talk.was_ready or await self._processes.make_ready(talk):
            return
        if talk.ended is not None:
            raise verdicts.not_started(self.order.spec, talk.ended)
        await self._processes.kill(self._tenancy, process)
        raise verdicts.silent(self.order.spec)

    async def interrupt(self) -> None:
        """Interrupt what the present process runs, in the way of its kernelspec."""
        if self.process is None or self.talk is None or self.ended is not None:
            return
        if self.process.interrupted_by_message:
            msg_id = new_id("msg")
            try:
                await self.talk.send(Channel.CONTROL, "interrupt_request", {}, msg_id=msg_id)
            except SandboxdError as error:
                if error.code is not ErrorCode.KERNEL_DIED:  # then it is dead, as `ended` says
                    raise
        else:
            await self._processes.interrupt(self._tenancy, self.process)

    async def try_to_interrupt(self) -> None:
        """The same, where one that cannot be interrupted is restarted soon."""
        try:
            await self.interrupt()
        except SandboxdError as error:
            if self._tenancy.lease.over:
                raise
            log.info("kernel.not_interrupted", kernel=self.order.kernel_id, why=str(error))

    def judged(self, error: SandboxdError) -> SandboxdError:
        """What kept a process from taking cells, with its fault."""
        return verdicts.spoiled(error) if way_of(self.order) in self._proven else error

    async def remove(self) -> None:
        """End the kernel, and have its guest forget all of it."""
        await self._processes.remove(self._tenancy, self.order.kernel_id)

    async def _is_given(self, talk: Talk, process: Process) -> bool:
        """Whether a kernel from before the lease has what that brings, once somebody wants it."""
        await self._taken.wait()
        changes = await self._processes.take(self._tenancy, process, self.order)
        await talk.caught_up.wait()
        if talk.was_ready or changes is None:
            return talk.was_ready
        return await self._processes.bind(talk, changes, language=process.language)

    def _speak(self, process: Process) -> Talk:
        return self._processes.talk(self._tenancy, process, heard=self._heard, missed=self._missed)

    async def _listen(self, talk: Talk) -> None:
        await talk.run()
        self._told_end()
