"""One template's pool: keeps the stock filled, serves those who wait, and survives failing makes.

It decides synchronously (`plan`, `Stock`, `Queue`) and acts in tasks of its own. It knows nothing
of leases: it hands out boxes in state LEASED and is told when they are done with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.backends.protocol import Backend, BoxRef, Death
from sandboxd.egress.lent import Lender
from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, PoolSettings, Template
from sandboxd.pool.admission import Queue, Ticket
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.experience import Experience
from sandboxd.pool.house import House
from sandboxd.pool.plan import PoolView, Want, plan
from sandboxd.pool.status import PoolStatus
from sandboxd.pool.stock import Box, Stock
from sandboxd.pool.words import Words
from sandboxd.pool.workshop import Workshop
from sandboxd.telemetry.events import Events
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_REFILL_LAG_S = 0.01


class WarmPool:
    """The boxes of one template."""

    def __init__(
        self,
        template: Template,
        *,
        backend: Backend,
        disposer: Disposer,
        house: House,
        labels: Mapping[str, str],
        metrics: Metrics,
        events: Events,
        lender: Lender | None = None,
    ) -> None:
        self._direct = backend.capabilities().direct_networks
        self.template = template
        self.spec = template.spec.boxed(self._direct)
        self.settings = template.pool
        self.stock = Stock()
        self.paused = False  # by the operator
        self.retired = False  # its template is gone, or the house is being cleared
        self.experience = Experience()
        self._fingerprint = self.spec.fingerprint()
        self._workshop = Workshop(backend, labels=labels, metrics=metrics, lender=lender)
        self._disposer = disposer
        self._house = house
        self._events = events
        self._queue = Queue(most=template.pool.queue)
        self._words = Words(self.stock, on_silent=self._silent)
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        house.pools[template.name] = self

    def __repr__(self) -> str:
        return f"<WarmPool {self.template.name} {self.stock!r} waiting={len(self._queue)}>"

    # What a lease asks of it: all synchronous.

    def take(self, spec: BoxSpec) -> Box | None:
        """A warm box of that spec, at once, now LEASED; None if there is none."""
        box = self.stock.take(spec.fingerprint())
        if box is not None:
            self.wake()
        return box

    def queue_up(self, spec: BoxSpec, *, priority: int) -> Ticket:
        """Take a place in the queue. Raises `capacity` when the queue is full."""
        if self._queue.full:
            wait_s = self.expected_wait_s(len(self._queue))
            raise SandboxdError(
                ErrorCode.CAPACITY,
                f"pool {self.template.name!r}: {len(self._queue)} callers wait, more may not",
                retry_after_s=max(1.0, wait_s),
                details={"position": len(self._queue), "expected_wait_s": wait_s},
            )
        return self._join(Ticket(spec=spec, fingerprint=spec.fingerprint(), priority=priority))

    def queue_again(self, ticket: Ticket) -> Ticket:
        """Back to the same place, for a caller whose box was no good; the bound is no matter."""
        return self._join(ticket.again())

    def _join(self, ticket: Ticket) -> Ticket:
        self._queue.join(ticket)
        self.wake()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the queue; a box that was given already is disposed of. Idempotent."""
        self._queue.leave(ticket)
        if ticket.box is not None and ticket.box.state is BoxState.LEASED:
            self.give_up(ticket.box)
        self._house.wake()

    def position(self, ticket: Ticket) -> int:
        """The ticket's place; 0 is next, and also that of one who has left the queue."""
        return self._queue.position(ticket)

    def expected_wait_s(self, position: int) -> float:
        """An estimate of the wait at that place."""
        return self.experience.expected_wait_s(position, self.settings)

    def give_up(self, box: Box) -> anyio.Event:
        """Dispose of a box, used, dead or stale. The event is set once it is gone. Idempotent."""
        if box.state not in {BoxState.DISPOSING, BoxState.GONE}:
            self.stock.move(box, BoxState.DISPOSING)
        return self._disposer.dispose(box.box_id, box.ref, box.guest)

    # What happens to it.

    def died(self, death: Death) -> None:
        """A box of this stock is dead. Leased ones are their lease's business."""
        box = self.stock.get(death.box_id)
        if box is not None and box.state is BoxState.WARM:
            self.experience.noticed(f"a warm box died: {death.detail or death.reason}")
            log.warning("stock.died", pool=self.template.name, box_id=box.box_id)
            self.give_up(box)
            self.wake()

    def _silent(self, box: Box, error: Exception) -> None:
        self.experience.noticed(f"a warm box did not answer: {error}")
        self.give_up(box)

    def adopt(self, ref: BoxRef, *, fingerprint: str, state: BoxState) -> Box:
        """Enter a box that lived before this daemon did."""
        box = Box(
            box_id=ref.box_id,
            fingerprint=fingerprint,
            pool=self.template.name,
            state=state,
            ref=ref,
            guest=self._workshop.guest(ref),
        )
        self.stock.enter(box)
        return box

    def strike(self, box_id: str) -> None:
        """The box is gone."""
        box = self.stock.get(box_id)
        if box is not None and box.state is BoxState.DISPOSING:
            self.stock.move(box, BoxState.GONE)

    def change(self, template: Template) -> None:
        """Take another version of the template; stock that no longer fits is replaced."""
        self.template, self.spec = template, template.spec.boxed(self._direct)
        self.settings, self.retired = template.pool, False
        self._queue.most = template.pool.queue
        self._fingerprint = self.spec.fingerprint()
        self.experience.start_over()
        self.wake()

    def adjust(self, settings: PoolSettings, *, paused: bool) -> None:
        """Take other pool settings until the configuration is read again."""
        self.settings, self.paused = settings, paused
        self._queue.most = settings.queue
        self.wake()

    def retire(self) -> None:
        """Its template is gone: no more stock. Leases that are out live on, callers who wait are
        served; `change` or `reopen` ends it.
        """
        self.retired = True
        self.wake()

    def reopen(self) -> None:
        """Keep stock again."""
        self.retired = False
        self.wake()

    async def hang_up(self) -> None:
        """Close every line into its boxes; they live on."""
        for box in self.stock:
            if box.guest is not None:
                await box.guest.aclose()

    def refuse_all(self, error: SandboxdError) -> None:
        """Answer everybody who waits, for instance with `shutting_down`."""
        for ticket in self._queue.waiting():
            self._queue.leave(ticket)
            ticket.refuse(error)

    def wake(self) -> None:
        """Have the loop look again."""
        self._changed.set()
        if len(self._queue):
            self._wanted.set()

    def status(self) -> PoolStatus:
        """Counts for the API and metrics."""
        return PoolStatus(
            template=self.template.name,
            ready=self.stock.count(BoxState.WARM),
            making=self.stock.count(BoxState.MAKING),
            leased=self.stock.count(BoxState.LEASED),
            disposing=self.stock.count(BoxState.DISPOSING),
            queued=len(self._queue),
            target=self._target,
            max=self.settings.max,
            starting=self.settings.starting,
            paused=self.paused,
            last_error=self.experience.last_error,
        )

    # What the house weighs pools against each other by.

    @property
    def waits_since(self) -> float:
        """The number of the oldest ticket that no box is coming for; infinite without one."""
        return min((ticket.number for ticket in self._unserved()), default=math.inf)

    @property
    def could_begin(self) -> int:
        """How many boxes it would begin now for those who wait, if the house had room."""
        unserved = len(self._unserved())
        if unserved == 0:
            return 0
        starting = self.settings.starting - self.stock.count(BoxState.MAKING)
        return max(0, min(unserved, starting, self.settings.max - self.stock.exists))

    def drop_oldest(self) -> bool:
        """Give up the warm box that was made first. False without one."""
        warm = self.stock.warm()
        if warm:
            self.give_up(warm[0])
        return bool(warm)

    def _unserved(self) -> list[Ticket]:
        return self._queue.unserved(self._fingerprint, coming=self._coming())

    def _coming(self) -> int:
        """Boxes of the pool's own spec in the making, for whoever is next."""
        return self.stock.making(self._fingerprint) - self._queue.begun(self._fingerprint)

    @property
    def _target(self) -> int:
        return 0 if self.retired else self.settings.ready

    # The loop.

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the stock until cancelled. What is in the making then is found at the next start."""
        self._words.put_off()
        async with anyio.create_task_group() as tasks:
            task_status.started()
            while True:
                self._changed = anyio.Event()
                self._wanted = anyio.Event()
                self._serve_from_stock()
                for box in self.stock.stale(self._fingerprint):
                    self.give_up(box)
                self._drop_surplus()
                self._begin(tasks)
                await self._until_something_is_due(tasks)
                await self._let_the_lease_go_first()

    async def _until_something_is_due(self, tasks: TaskGroup) -> None:
        now = anyio.current_time()
        due = self._words.due_at
        if self.experience.rests_until > now:
            due = min(due, self.experience.rests_until)
        with anyio.move_on_after(due - now):
            await self._changed.wait()
            return
        if anyio.current_time() >= self._words.due_at:
            self._words.put_off()
            tasks.start_soon(self._words.say, name=f"pool-{self.template.name}-word")

    async def _let_the_lease_go_first(self) -> None:
        """Whoever took the box is being served right now: making the next one at once would compete
        with that for the processor. Whoever waits for a make does not wait for this.
        """
        with anyio.move_on_after(_REFILL_LAG_S):
            await self._wanted.wait()

    def _serve_from_stock(self) -> None:
        """Stock may have come while a caller was away to try a box that was no good."""
        for ticket in self._queue.waiting():
            box = self.stock.take(ticket.fingerprint)
            if box is not None:
                self._queue.leave(ticket)
                ticket.give(box)

    def _drop_surplus(self) -> None:
        surplus = self.stock.count(BoxState.WARM) - self._target
        for box in self.stock.warm()[: max(0, surplus)]:
            self.give_up(box)

    def _begin(self, tasks: TaskGroup) -> None:
        waiting = self._queue.waiting()
        orders = plan(self._view(), [self._want(ticket) for ticket in waiting])
        for place in orders.own:
            ticket = waiting[place]
            ticket.making = box = self._enter(ticket.fingerprint)
            tasks.start_soon(self._make, box, ticket.spec, ticket, name=f"make-{box.box_id}")
        for _ in range(orders.shared):
            box = self._enter(self._fingerprint)
            tasks.start_soon(self._make, box, self.spec, None, name=f"make-{box.box_id}")
        self._make_room(sum(1 for ticket in waiting if self._want(ticket) is Want.OWN))
        self._house.make_room()

    def _view(self) -> PoolView:
        making = self.stock.count(BoxState.MAKING)
        return PoolView(
            target=self._target,
            most=self.settings.max,
            starting=self.settings.starting,
            warm=self.stock.count(BoxState.WARM),
            making=making,
            making_own=making - self._coming(),
            leased=self.stock.count(BoxState.LEASED),
            disposing=self.stock.count(BoxState.DISPOSING),
            house_room=self._house.room_for(self),
            house_spare=self._house.spare(self),
            refill=not self.paused and self.experience.rested,
        )

    def _make_room(self, unmet: int) -> None:
        """Stock that nobody waits for must not keep out those who want something else."""
        lacking = unmet - (self.settings.max - self.stock.exists)
        for box in self.stock.warm()[: max(0, lacking - self.stock.count(BoxState.DISPOSING))]:
            self.give_up(box)

    def _want(self, ticket: Ticket) -> Want:
        if ticket.making is not None:
            return Want.BEGUN
        return Want.STOCK if ticket.fingerprint == self._fingerprint else Want.OWN

    def _enter(self, fingerprint: str) -> Box:
        box = Box(box_id=new_id("box"), fingerprint=fingerprint, pool=self.template.name)
        self.stock.enter(box)
        return box

    async def _make(self, box: Box, spec: BoxSpec, ticket: Ticket | None) -> None:
        try:
            took_s = await self._workshop.make(box, spec)
        except SandboxdError as error:
            self._make_failed(box, ticket, error)
        else:
            self._made(box, ticket, took_s)
        finally:
            self.wake()

    def _made(self, box: Box, ticket: Ticket | None, took_s: float) -> None:
        self.experience.made(took_s)
        if ticket is None or ticket not in self._queue:  # it was made for one who has gone
            ticket = self._queue.pop(box.fingerprint)
        else:
            self._queue.leave(ticket)
        if ticket is None:
            self.stock.move(box, BoxState.WARM)  # for the loop to drop, if it is no stock of ours
        else:
            self.stock.move(box, BoxState.LEASED)
            ticket.give(box)

    def _make_failed(self, box: Box, ticket: Ticket | None, error: SandboxdError) -> None:
        self.experience.failed(error)
        log.warning("make.failed", pool=self.template.name, box_id=box.box_id, error=str(error))
        self.give_up(box)
        if ticket is None:
            ticket = self._queue.pop(box.fingerprint, unserved=True)
        elif ticket in self._queue:
            self._queue.leave(ticket)
        else:
            return  # who waited for it has gone
        if ticket is not None:
            ticket.refuse(error)
