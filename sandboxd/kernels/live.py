"""One kernel of one lease while this daemon runs: its processes one after the other, its cells.

    STARTING ──► IDLE ◄──► BUSY
        ▲          │         │
        └ RESTARTING ◄───────┴──► DEAD

Cells are given to it one at a time, so that what waits does not count against its time and can be
aborted. What is decided is decided synchronously; one task carries it out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import Channel, Missing
from sandboxd.kernels import endings, verdicts
from sandboxd.kernels.cell_book import CellBook, Ticket
from sandboxd.kernels.cells import CellRun
from sandboxd.kernels.early.proofs import Way
from sandboxd.kernels.jupyter.visits import Visits
from sandboxd.kernels.messages import Message
from sandboxd.kernels.patience import Patience
from sandboxd.kernels.processes import Process, Processes
from sandboxd.kernels.requests import request_of
from sandboxd.kernels.succession import Succession
from sandboxd.kernels.talk import Talk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.kernel import CellOrder, Kernel, KernelOrder, KernelState
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import CellOutcome, ErrorCode


class LiveKernel:
    """See the module. `run` must run for anything to happen.

    changed: replaced and set with everything that is heard. visits: who uses it beside our cells.
    proven: as of Succession.
    """

    def __init__(
        self,
        order: KernelOrder,
        *,
        tenancy: Tenancy,
        processes: Processes,
        metrics: Metrics,
        proven: set[Way],
        waits: bool = False,
    ) -> None:
        self.tenancy = tenancy
        self.state = KernelState.STARTING
        self.execution_count = 0
        self.death: SandboxdError | None = None
        self.ready = anyio.Event()  # or dead
        self.over = anyio.Event()  # it will not come back
        self.changed = anyio.Event()
        self.active_at = processes.now()
        self.visits = Visits(tenancy, done=self._wake)
        self._now = processes.now
        self._metrics = metrics
        self._succession = Succession(
            order,
            tenancy=tenancy,
            processes=processes,
            heard=self._hear,
            missed=self._miss,
            ended=self._wake,
            proven=proven,
            waits=waits,
        )
        self._book = CellBook()
        self._patience: Patience | None = None  # with the cell that runs
        self._restart: anyio.Event | None = None  # that a caller waits for
        self._shut_down: anyio.Event | None = None

    def shown(self) -> Kernel:
        """The kernel as it is now."""
        return Kernel(
            kernel_id=self.order.kernel_id,
            spec=self.order.spec,
            state=self._shown_state,
            execution_count=self.execution_count,
            clients=len(self.visits),
            active_at=self.active_at,
        )

    @property
    def order(self) -> KernelOrder:
        """What it was started as, or is to be."""
        return self._succession.order

    @property
    def talk(self) -> Talk | None:
        """The conversation with its present process; None while there is none."""
        return self._succession.talk

    @property
    def present(self) -> Process | None:
        """Its process, once that takes requests; None while there is none."""
        ready = self.state in {KernelState.IDLE, KernelState.BUSY} and self._ended is None
        return self._succession.process if ready else None

    @property
    def _shown_state(self) -> KernelState:
        if self.waits:
            return KernelState.IDLE if self._ended is None else KernelState.DEAD
        visited = self.state is KernelState.IDLE and self.visits.busy
        return KernelState.BUSY if visited else self.state

    @property
    def waits(self) -> bool:
        """Whether it runs from before the lease, and nobody has taken it yet."""
        return self._succession.waits

    def take(self, order: KernelOrder) -> None:
        """Whoever wants it first says what it is called and what it runs with."""
        self._succession.take(order)

    # What callers ask: synchronous where it can be.

    def submit(self, order: CellOrder) -> Ticket:
        """A place in the line, or the cell of that id. Raises `conflict` for an id that belongs to
        other code, `kernel_died`, and `kernel_busy` where too many wait.
        """
        ticket = self._book.known(order)
        if ticket is None:
            if self.death is not None:
                raise self.died()
            ticket = self._book.join(order)
            self._wake()
        return ticket

    def find(self, cell_id: str) -> Ticket:
        """Raises `not_found`."""
        found = self._book.get(cell_id)
        if found is None:
            raise SandboxdError(ErrorCode.NOT_FOUND, f"there is no cell {cell_id!r}")
        return found

    async def turn(self) -> None:
        """Wait until the cells that wait now have been given to it, or never will be."""
        last = self._book.last_waiting
        while last is not None and self._book.is_waiting(last):
            await self._news()

    def died(self) -> SandboxdError:
        """What calls on a dead kernel are answered."""
        assert self.death is not None
        return self.death.again()

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, if any; one that goes on is ended by a restart, in 10 s.

        Raises `kernel_died`.
        """
        if self.death is not None:
            raise self.died()
        if self._patience is not None:
            self._patience.interrupt()
        await self._succession.interrupt()
        self._wake()

    async def restart(self) -> None:
        """Start anew: its variables are gone, what runs ends `interrupted`, what waits is aborted.

        Returns once it is ready. Raises `start_failed`.
        """
        if self._restart is None:
            self._restart = anyio.Event()
            self._wake()
        await self._restart.wait()
        if self.death is not None:
            raise self.died()

    async def shut_down(self) -> None:
        """End it for good: what runs ends `interrupted`, what waits is refused. Idempotent."""
        if self._shut_down is None:
            self._shut_down = anyio.Event()
            self._wake()
        await self._shut_down.wait()

    async def answer(self, text: str) -> None:
        """Answer the input that the running cell asks for. Raises `conflict` if it asks none, and
        `kernel_died`.
        """
        if self.death is not None:
            raise self.died()
        current = self._book.current
        asked = None if current is None else current.run.asked_input
        if current is None or asked is None or self.talk is None:
            raise SandboxdError(ErrorCode.CONFLICT, "the kernel asks for no input")
        current.run.asked_input = None
        await self.talk.send(
            Channel.STDIN, "input_reply", {"value": text}, msg_id=new_id("msg"), parent=asked
        )

    async def ask(self, kind: str, content: Mapping[str, Any], *, within_s: float) -> Message:
        """Ask it something on its shell, behind what runs; its reply. Raises `timeout`."""
        if self.death is not None:
            raise self.died()
        if self.talk is None:
            raise verdicts.not_ready()
        return await self.talk.ask(kind, content, within_s=within_s)

    # The one task.

    async def run(self, past: Sequence[Process]) -> None:
        """Until it is shut down; a dead one waits for a restart. past: its processes so far, those
        of an earlier daemon.
        """
        try:
            async with anyio.create_task_group() as tasks:
                await self._take_up(tasks, past)
                while self._shut_down is None or self._book.current is not None:
                    await self._next(tasks)
                await self._succession.remove()
                tasks.cancel_scope.cancel()
        except* SandboxdError as errors:
            self._end_all(verdicts.first_of(errors))
        finally:
            gone = self._shut_down is not None
            self._end_all(verdicts.shut_down() if gone else verdicts.not_ready())

    async def _take_up(self, tasks: TaskGroup, past: Sequence[Process]) -> None:
        for process in past[:-1]:
            record = await self._succession.read_past(process)
            # The cell that it ran last is over.
            if record is not None and (ticket := self._book.current) is not None:
                endings.end_replaced(ticket.run, record)
                self._close(ticket)
        if past:
            await self._enter(self._succession.follow(tasks, past[-1]))
        else:
            await self._enter(self._succession.begin(tasks))

    async def _enter(self, beginning: Awaitable[None]) -> None:
        """Be ready once a process is, or dead with what kept it."""
        try:
            await beginning
        except SandboxdError as error:
            if self.tenancy.lease.over:
                raise
            self._mark_dead(self._succession.judged(error))
        else:
            self.state, self.death = KernelState.IDLE, None
            self._note("kernel_ready")
            self.ready.set()

    async def _next(self, tasks: TaskGroup) -> None:
        """One thing that is due: a cell's end, a restart, a cell, or a wait for any."""
        if self._book.current is not None:
            await self._see_through(tasks, self._book.current)
        elif self._restart is not None:
            await self._restarted(tasks)
        elif self._ended is not None and self.death is None:
            self._mark_dead(verdicts.death(self._ended))
        elif self.death is None and self._book.waits and not self.visits.busy:
            await self._give_next()
        else:
            await self._news()

    @property
    def _ended(self) -> ExecRecord | None:
        """How its present process did, once it has."""
        return self._succession.ended

    async def _news(self, *, until: float = float("inf")) -> None:
        changed = self.changed
        with anyio.CancelScope(deadline=until):
            await changed.wait()

    def _wake(self) -> None:
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def _restarted(self, tasks: TaskGroup) -> None:
        asked, self._restart = self._restart, None
        self.state, self.ready = KernelState.RESTARTING, anyio.Event()
        self.execution_count = 0
        self._book.abort_waiting()
        self.visits.clear()
        await self._enter(self._succession.begin_anew(tasks))
        if asked is not None:
            asked.set()

    # Cells.

    async def _give_next(self) -> None:
        talk, given_at = self.talk, self._now()
        assert talk is not None
        ticket = self._book.next(at=given_at)
        run = ticket.run
        self.state, self._patience = KernelState.BUSY, Patience(run, ran_s=0.0)
        try:
            request = request_of(run.order, started_at=given_at)
            if not await talk.send(Channel.SHELL, "execute_request", **request):
                raise verdicts.ran_before(run.order.cell_id)
            run.start()
            self._wake()
        except SandboxdError as error:
            if talk.ended is None and error.code is not ErrorCode.KERNEL_DIED:
                ticket.refuse(error)
                self._book.current = self._patience = None
                self.state = KernelState.IDLE

    async def _see_through(self, tasks: TaskGroup, ticket: Ticket) -> None:
        """Until the cell that the kernel was given is over, and what that brings about."""
        run = ticket.run
        self.state = KernelState.BUSY
        if self._patience is None:  # an earlier daemon gave it to the kernel
            self._patience = Patience(run, ran_s=self._now() - (run.started_at or 0.0))
        with self.tenancy.call():  # a busy kernel is use
            await self._until_it_must_end(run, self._patience)
        now = self._now()
        if run.settled:
            endings.end_by_reply(run, at=now)
        elif self._ended is not None and not endings.was_forced(self._ended):
            endings.end_by_death(run, self._ended, at=now)
            self._mark_dead(verdicts.death(self._ended))
        else:
            endings.end_by_force(run, at=now, restarted=self._shut_down is None)
        stops = run.outcome is not CellOutcome.OK and run.order.stop_on_error
        if stops or run.kernel_restarted:
            self._book.abort_waiting()
        self._close(ticket)
        if run.kernel_restarted and self._restart is None and self._shut_down is None:
            await self._restarted(tasks)
        elif self.state is KernelState.BUSY:
            self.state = KernelState.IDLE

    async def _until_it_must_end(self, run: CellRun, patience: Patience) -> None:
        """Until it has settled, its process is gone, or it must be ended by a restart."""
        while not run.settled and self._ended is None and not patience.is_over:
            if self._restart is not None or self._shut_down is not None:
                return
            if patience.runs_out():
                await self._succession.try_to_interrupt()
            await self._news(until=patience.due)

    def _close(self, ticket: Ticket) -> None:
        run = ticket.run
        self.execution_count = run.count or self.execution_count
        self._metrics.cell_seconds.labels(run.outcome).observe(run.duration_s)
        run.tell(sandbox_id=self.tenancy.lease.id, kernel_id=self.order.kernel_id)
        self._book.current = self._patience = None
        ticket.ended.set()
        self._wake()

    # What is heard.

    def _hear(self, message: Message) -> None:
        self.active_at = self._now()
        ticket = self._book.hear(message)
        if ticket is not None and self.state in _LOOKING_BACK and ticket.is_past:
            endings.end_past(ticket.run, now=self._now())
            self._close(ticket)
        if message.channel is not Channel.SENT:
            self.visits.hear(message)
        self._wake()

    def _miss(self, missing: Missing) -> None:
        self._book.miss(missing)
        self._wake()

    # Ends.

    def _mark_dead(self, error: SandboxdError) -> None:
        self.state, self.death = KernelState.DEAD, error
        self._note("kernel_died", detail=error.detail)
        self.ready.set()
        self._book.refuse_waiting(self.died())
        self.visits.clear()
        self._wake()

    def _note(self, event: str, **facts: Any) -> None:
        self.tenancy.note(event, kernel_id=self.order.kernel_id, spec=self.order.spec, **facts)

    def _end_all(self, error: SandboxdError) -> None:
        self._book.refuse_all(error)
        self.visits.clear()
        if self.death is None:
            self.state, self.death = KernelState.DEAD, error
        for waited in (self.ready, self.over, self._restart, self._shut_down):
            if waited is not None:
                waited.set()
        self._wake()


# While it is one of these, what is heard may be from an earlier daemon's time.
_LOOKING_BACK = {KernelState.STARTING, KernelState.RESTARTING}
