"""One template's pool: keeps the stock filled, serves those who wait, and survives failing makes.

It decides synchronously (`plan`, `Stock`, `Queue`) and acts in tasks of its own. It knows nothing
of leases: it hands out boxes in state LEASED and is told when they are done with.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.backends.protocol import Backend, BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, PoolSettings, Template
from sandboxd.pool.admission import Flow, Queue, Ticket, Unit
from sandboxd.pool.bell import Bell
from sandboxd.pool.demand import Demand
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.entrance import Entrance, shrunk
from sandboxd.pool.experience import Alerts, Experience, Health
from sandboxd.pool.house import House
from sandboxd.pool.plan import PoolView, Want, plan
from sandboxd.pool.status import PoolStatus
from sandboxd.pool.stock import Box, Stock
from sandboxd.pool.words import Words
from sandboxd.pool.workshop import Equipment, Workshop
from sandboxd.telemetry.events import Events
from sandboxd.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


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
        equipment: Equipment | None = None,
    ) -> None:
        self._direct = backend.capabilities().direct_networks
        self.template = template
        self.spec = template.spec.boxed(self._direct)
        self.stock = Stock()
        self.paused = False  # by the operator
        self.retired = False  # its template is gone, or the house is being cleared
        self.experience = Experience()
        equipment = equipment or Equipment()
        self._workshop = Workshop(backend, labels=labels, metrics=metrics, equipment=equipment)
        self._disposer = disposer
        self._house = house
        self._alerts = Alerts(events, pool=template.name)
        self._queue = Queue(most=template.pool.queue)
        self.demand = Demand(
            self._queue,
            self.stock,
            fingerprint=self.spec.fingerprint(),
            settings=template.pool,
        )
        self._entrance = Entrance(
            self._queue, self.demand, self.experience, pool=template.name, most=house.most
        )
        self._words = Words(
            self.stock, orphan_s=backend.capabilities().orphan_s, on_silent=self._silent
        )
        self._bell = Bell()
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

    def queue_up(self, spec: BoxSpec, *, priority: int, flow: Flow) -> Ticket:
        """Take a place in the queue. flow: whose turn it is, an owner or one of its runs.

        Raises `capacity` when the queue is full, and why the last make failed while no make can
        succeed.
        """
        ticket = Ticket(spec, spec.fingerprint(), priority, flow)
        self._entrance.check(ticket.fingerprint)
        self._queue.join(ticket)
        self.wake()
        return ticket

    def queue_up_together(
        self, spec: BoxSpec, *, priority: int, flow: Flow, count: int
    ) -> tuple[Unit, list[Ticket]]:
        """Take boxes that are wanted all or none out of the stock, or else places for them; stock
        goes to those now, unless others are before them. `finished` must be told in the end.

        Raises as `queue_up`, for the whole of it. The caller of this asks `check_size` first.
        """
        unit, fingerprint = Unit(count), spec.fingerprint()
        tickets = [Ticket(spec, fingerprint, priority, flow, unit) for _ in range(count)]
        if self.stock.in_stock(fingerprint) >= count:
            unit.begin(covered=True)
            for ticket, box in zip(tickets, self.stock.take_many(fingerprint, count), strict=True):
                ticket.give(box)
        else:
            self._entrance.check(fingerprint, count=count)
            self._queue.join(*tickets)
            self._begin_units()
            self._serve_from_stock()
        self.wake()
        return unit, tickets

    def check_size(self, count: int) -> None:
        """Raises `bad_request` for more boxes together than there can ever be."""
        self._entrance.check_size(count)

    def queue_again(self, ticket: Ticket) -> Ticket:
        """Back to the same place, for a caller whose box was no good; the bound is no matter."""
        again = ticket.again()
        self._queue.rejoin(again)
        self.wake()
        return again

    def finished(self, unit: Unit) -> None:
        """A unit has all that it wanted, or gave up. Idempotent."""
        self._house.finished(unit)

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
        """A box of this pool is dead. Leased ones are their lease's business."""
        box = self.stock.get(death.box_id)
        if box is None:
            return
        box.dead = True
        if box.state is BoxState.WARM:
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

    @property
    def settings(self) -> PoolSettings:
        """What the configuration or an operator says of it."""
        return self.demand.settings

    def change(self, template: Template) -> None:
        """Take another version of the template; stock that no longer fits is replaced."""
        self.template, self.spec = template, template.spec.boxed(self._direct)
        self.retired = False
        self.demand.fingerprint = self.spec.fingerprint()
        self.experience.start_over()
        self.adjust(template.pool, paused=self.paused)

    def adjust(self, settings: PoolSettings, *, paused: bool) -> None:
        """Take other pool settings until the configuration is read again. Units that can never be
        served any more are refused.
        """
        self.demand.settings, self.paused = settings, paused
        self._queue.most = settings.queue
        too_large = self._queue.units_over(settings.max)
        self._queue.refuse(too_large, shrunk(self.template.name, settings.max))
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
        self._queue.refuse(self._queue.everybody(), error)

    def wake(self) -> None:
        """Have the loop look again."""
        self._bell.ring(callers=len(self._queue) > 0)

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
            state=self.experience.health,
            last_error=self.experience.last_error,
        )

    # What the house asks of it.

    def begin(self, unit: Unit, *, covered: bool) -> None:
        """Give boxes to a unit from now on."""
        self._queue.begin(unit, covered=covered)

    def drop_oldest(self) -> bool:
        """Give up the warm box that was made first. False without one."""
        warm = self.stock.warm()
        if warm:
            self.give_up(warm[0])
        return bool(warm)

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
                self._bell.still()
                self._begin_units()
                self._serve_from_stock()
                for box in self.stock.stale(self.demand.fingerprint):
                    self.give_up(box)
                for box in self.stock.surplus(self._target):
                    self.give_up(box)
                self._begin(tasks)
                await self._until_something_is_due(tasks)

    async def _until_something_is_due(self, tasks: TaskGroup) -> None:
        due = self._words.due_at
        if not self.experience.rested:
            due = min(due, self.experience.rests_until)
        if not await self._bell.heard(by=due) and anyio.current_time() >= self._words.due_at:
            self._words.put_off()
            tasks.start_soon(self._words.say, name=f"pool-{self.template.name}-word")

    def _begin_units(self) -> None:
        while (unit := self.demand.next_unit) is not None and self._house.may_begin(unit, self):
            pass

    def _serve_from_stock(self) -> None:
        """Stock may have come while a caller was away to try a box that was no good."""
        if not self.stock.count(BoxState.WARM):
            return
        for ticket in self._queue.waiting():
            box = self.stock.take(ticket.fingerprint)
            if box is not None:
                self._queue.serve(ticket)
                ticket.give(box)

    def _begin(self, tasks: TaskGroup) -> None:
        view = self._view()
        # Most of the time all places are taken, and the queue may be long.
        wants = self.demand.wants() if view.free > 0 or view.warm > 0 else []
        orders = plan(view, [want for _, want in wants])
        for place in orders.own:
            ticket, _ = wants[place]
            ticket.making = box = self._enter(ticket.fingerprint)
            tasks.start_soon(self._make, box, ticket.spec, ticket, name=f"make-{box.box_id}")
        for _ in range(orders.shared):
            box = self._enter(self.demand.fingerprint)
            tasks.start_soon(self._make, box, self.spec, None, name=f"make-{box.box_id}")
        if wants and (orders.own or orders.shared):
            self._house.serves(self)
        unmet = sum(want is Want.OWN and ticket.making is None for ticket, want in wants)
        for box in self.stock.warm()[: self.demand.in_the_way(unmet)]:
            self.give_up(box)
        self._house.make_room()

    def _view(self) -> PoolView:
        return self.demand.view(
            target=self._target,
            house_room=self._house.room_for(self),
            house_spare=self._house.spare(self),
            refill=not self.paused and self.experience.rested,
            shared_most=self.experience.may_begin(making=self.demand.coming),
        )

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
        self.experience.made(took_s, alone=box.fingerprint != self.demand.fingerprint)
        self._alerts.look(self.experience)
        if ticket is None or ticket not in self._queue:  # it was made for one who has gone
            ticket = self._queue.pop(box.fingerprint)
        else:
            self._queue.serve(ticket)
        if ticket is None:
            self.stock.move(box, BoxState.WARM)  # for the loop to drop, if it is no stock of ours
        else:
            self.stock.move(box, BoxState.LEASED)
            ticket.give(box)

    def _make_failed(self, box: Box, ticket: Ticket | None, error: SandboxdError) -> None:
        alone = box.fingerprint != self.demand.fingerprint
        self.experience.failed(error, alone=alone)
        log.warning("make.failed", pool=self.template.name, box_id=box.box_id, error=str(error))
        self.give_up(box)
        self._answer_with(error, ticket, fingerprint=box.fingerprint)
        self._alerts.look(self.experience)
        if not alone and self.experience.health is Health.OPEN:
            self._queue.refuse(self.demand.own_tickets(), self.experience.refusal())

    def _answer_with(
        self, error: SandboxdError, ticket: Ticket | None, *, fingerprint: str
    ) -> None:
        """One failed make answers one caller: the one it was for, else whoever is next."""
        if ticket is None:
            ticket = self._queue.pop(fingerprint, unserved=True)
        elif ticket in self._queue:
            self._queue.leave(ticket)
        else:
            return  # who waited for it has gone
        if ticket is not None:
            ticket.refuse(error)
