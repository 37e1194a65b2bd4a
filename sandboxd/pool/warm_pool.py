"""One template's pool: keeps the stock filled, serves those who wait, and survives failing makes.

It decides synchronously (`plan`, `Stock`, `Queue`) and acts in tasks of its own. It knows nothing
of leases: it hands out boxes in state LEASED and is told when they are done with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import anyio
import structlog
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from sandboxd.backends.protocol import Backend, BoxOrder, BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.model.box import BoxState
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, PoolSettings, Template
from sandboxd.pool.admission import Queue, Ticket
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.plan import Pace, PoolView, Want, expected_wait_s, plan
from sandboxd.pool.stock import Box, Stock
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_MAKE_S = 300.0  # a make that takes longer has failed
_FIRST_PAUSE_S = 0.5  # refill rests so long after a failed make, doubled with each one more
_LONGEST_PAUSE_S = 30.0
_WORD_EVERY_S = 900.0  # well under the guest's orphan limit of an hour
_WORD_S = 10.0
_REFILL_LAG_S = 0.01


class House:
    """What all pools share: the number of boxes that may exist in this installation."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self.pools: dict[str, WarmPool] = {}

    @property
    def room(self) -> int:
        """How many more boxes may exist."""
        return self.most - self.exists

    @property
    def exists(self) -> int:
        """How many boxes there are, in whatever state."""
        return sum(pool.stock.exists for pool in self.pools.values())

    def gone(self, box_id: str) -> None:
        """A box is gone: strike it off its pool's book, and let every pool look at the room."""
        for pool in self.pools.values():
            pool.strike(box_id)
            pool.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One line of `GET /v1/pools`."""

    template: str
    ready: int
    making: int
    leased: int
    disposing: int
    queued: int
    target: int
    max: int
    starting: int
    paused: bool
    last_error: str | None


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
    ) -> None:
        self.template = template
        self.settings = template.pool
        self.stock = Stock()
        self.paused = False
        self.last_error: str | None = None
        self._fingerprint = template.spec.fingerprint()
        self._backend = backend
        self._disposer = disposer
        self._house = house
        self._labels = labels
        self._metrics = metrics
        self._queue = Queue(most=template.pool.queue)
        self._pace = Pace()
        self._failures = 0
        self._rest_until = 0.0
        self._word_at = 0.0
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
        ticket = Ticket(spec=spec, fingerprint=spec.fingerprint(), priority=priority)
        self._queue.join(ticket)
        self._wanted.set()
        self.wake()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in the queue. Idempotent."""
        self._queue.leave(ticket)
        self.wake()

    def position(self, ticket: Ticket) -> int:
        """The ticket's place; 0 is next, and also that of one who has left the queue."""
        waiting = self._queue.waiting()
        return waiting.index(ticket) if ticket in waiting else 0

    def expected_wait_s(self, position: int) -> float:
        """An estimate of the wait at that place."""
        return expected_wait_s(
            self._pace, position=position, starting=self.settings.starting, most=self.settings.max
        )

    def give_up(self, box: Box) -> anyio.Event:
        """Dispose of a box, used, dead or stale. The event is set once it is gone."""
        if box.state is not BoxState.DISPOSING:
            self.stock.move(box, BoxState.DISPOSING)
        return self._disposer.dispose(box.box_id, box.ref, box.guest)

    def held(self, seconds: float) -> None:
        """A lease of this pool lasted so long: the pace of releases."""
        self._pace = Pace(make_s=self._pace.make_s, hold_s=0.8 * self._pace.hold_s + 0.2 * seconds)

    # What happens to it.

    def died(self, death: Death) -> None:
        """A box of this stock is dead. Leased ones are their lease's business."""
        box = self.stock.get(death.box_id)
        if box is not None and box.state is BoxState.WARM:
            self.last_error = f"a warm box died: {death.detail or death.reason}"
            log.warning(
                "stock.died", pool=self.template.name, box_id=box.box_id, detail=death.detail
            )
            self.give_up(box)
            self.wake()

    def adopt(self, ref: BoxRef, *, fingerprint: str, state: BoxState) -> Box:
        """Enter a box that lived before this daemon did."""
        box = Box(
            box_id=ref.box_id,
            fingerprint=fingerprint,
            pool=self.template.name,
            state=state,
            ref=ref,
            guest=self._guest(ref),
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
        self.template = template
        self.settings = template.pool
        self._queue.most = template.pool.queue
        self._fingerprint = template.spec.fingerprint()
        self._failures, self._rest_until = 0, 0.0
        self.wake()

    def adjust(self, settings: PoolSettings, *, paused: bool) -> None:
        """Take other pool settings until the configuration is read again."""
        self.settings, self.paused = settings, paused
        self._queue.most = settings.queue
        self.wake()

    def retire(self) -> None:
        """Its template is gone: no more stock; leases that are out live on."""
        self.adjust(replace(self.settings, ready=0), paused=True)
        for box in self.stock.warm():
            self.give_up(box)

    async def hang_up(self) -> None:
        """Close every line into its boxes; they live on."""
        for box in self.stock:
            if box.guest is not None:
                await box.guest.aclose()

    def refuse_all(self, error: SandboxdError) -> None:
        """Answer everybody who waits, for instance with `shutting_down`."""
        for ticket in self._queue.waiting():
            self._queue.remove(ticket)
            ticket.refuse(error)

    def wake(self) -> None:
        """Have the loop look again."""
        self._changed.set()

    def status(self) -> PoolStatus:
        """Counts for the API and metrics."""
        return PoolStatus(
            template=self.template.name,
            ready=self.stock.count(BoxState.WARM),
            making=self.stock.count(BoxState.MAKING),
            leased=self.stock.count(BoxState.LEASED),
            disposing=self.stock.count(BoxState.DISPOSING),
            queued=len(self._queue),
            target=self.settings.ready,
            max=self.settings.max,
            starting=self.settings.starting,
            paused=self.paused,
            last_error=self.last_error,
        )

    # The loop.

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the stock until cancelled. What is in the making then is found at the next start."""
        self._word_at = anyio.current_time() + _WORD_EVERY_S
        async with anyio.create_task_group() as tasks:
            task_status.started()
            while True:
                self._changed = anyio.Event()
                self._wanted = anyio.Event()
                for box in self.stock.stale(self._fingerprint):
                    self.give_up(box)
                self._drop_surplus()
                self._begin(tasks)
                await self._until_something_is_due(tasks)
                await self._let_the_lease_go_first()

    async def _until_something_is_due(self, tasks: TaskGroup) -> None:
        now = anyio.current_time()
        due = self._word_at
        if self._rest_until > now:
            due = min(due, self._rest_until)
        with anyio.move_on_after(due - now):
            await self._changed.wait()
            return
        if anyio.current_time() >= self._word_at:
            self._word_at = anyio.current_time() + _WORD_EVERY_S
            tasks.start_soon(self._say_a_word, name=f"pool-{self.template.name}-word")

    async def _let_the_lease_go_first(self) -> None:
        """Whoever took the box is being served right now: making the next one at once would compete
        with that for the processor. Whoever waits for a make does not wait for this.
        """
        with anyio.move_on_after(_REFILL_LAG_S):
            await self._wanted.wait()

    def _drop_surplus(self) -> None:
        surplus = self.stock.count(BoxState.WARM) - self.settings.ready
        for box in self.stock.warm()[: max(0, surplus)]:
            self.give_up(box)

    def _begin(self, tasks: TaskGroup) -> None:
        waiting = self._queue.waiting()
        now = anyio.current_time()
        orders = plan(
            PoolView(
                target=self.settings.ready,
                most=self.settings.max,
                starting=self.settings.starting,
                warm=self.stock.count(BoxState.WARM),
                making=self.stock.count(BoxState.MAKING),
                making_own=sum(1 for ticket in waiting if ticket.making),
                leased=self.stock.count(BoxState.LEASED),
                disposing=self.stock.count(BoxState.DISPOSING),
                house_room=self._house.room,
                refill=not self.paused and now >= self._rest_until,
            ),
            [self._want(ticket) for ticket in waiting],
        )
        for place in orders.own:
            ticket = waiting[place]
            ticket.making = self._enter(ticket.fingerprint)
            self._start_make(tasks, ticket.making, ticket.spec, ticket)
        for _ in range(orders.shared):
            self._start_make(tasks, self._enter(self._fingerprint), self.template.spec, None)
        self._make_room(sum(1 for ticket in waiting if self._want(ticket) is Want.OWN))

    def _make_room(self, unmet: int) -> None:
        """Stock that nobody waits for must not keep out those who want something else."""
        room = min(self.settings.max - self.stock.exists, self._house.room)
        lacking = unmet - room - self.stock.count(BoxState.DISPOSING)
        for box in self.stock.warm()[: max(0, lacking)]:
            self.give_up(box)

    def _want(self, ticket: Ticket) -> Want:
        if ticket.making is not None:
            return Want.BEGUN
        return Want.STOCK if ticket.fingerprint == self._fingerprint else Want.OWN

    def _enter(self, fingerprint: str) -> Box:
        box = Box(box_id=new_id("box"), fingerprint=fingerprint, pool=self.template.name)
        self.stock.enter(box)
        return box

    def _start_make(self, tasks: TaskGroup, box: Box, spec: BoxSpec, ticket: Ticket | None) -> None:
        tasks.start_soon(self._make, box, spec, ticket, name=f"make-{box.box_id}")

    async def _make(self, box: Box, spec: BoxSpec, ticket: Ticket | None) -> None:
        order = BoxOrder(
            box_id=box.box_id,
            spec=spec,
            labels={**self._labels, "pool": self.template.name, "fingerprint": box.fingerprint},
        )
        began = anyio.current_time()
        try:
            with anyio.fail_after(_MAKE_S):
                box.ref = await self._backend.make(order)
        except SandboxdError as error:
            self._make_failed(box, ticket, error)
        except TimeoutError:
            late = SandboxdError(ErrorCode.START_FAILED, f"no box within {_MAKE_S:.0f} s")
            self._make_failed(box, ticket, late)
        else:
            self._made(box, ticket, anyio.current_time() - began)
        finally:
            self.wake()

    def _made(self, box: Box, ticket: Ticket | None, took_s: float) -> None:
        assert box.ref is not None
        self._failures, self._rest_until, self.last_error = 0, 0.0, None
        self._pace = Pace(make_s=0.7 * self._pace.make_s + 0.3 * took_s, hold_s=self._pace.hold_s)
        self._metrics.make_seconds.labels(self._backend.name).observe(took_s)
        box.guest = self._guest(box.ref)
        if ticket is None:
            ticket = self._queue.pop(box.fingerprint)
        elif ticket.left:  # made for one caller alone, who has gone
            self.give_up(box)
            return
        else:
            self._queue.remove(ticket)
        if ticket is None:
            self.stock.move(box, BoxState.WARM)
        else:
            self.stock.move(box, BoxState.LEASED)
            ticket.give(box)

    def _make_failed(self, box: Box, ticket: Ticket | None, error: SandboxdError) -> None:
        self._failures += 1
        pause = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
        self._rest_until = anyio.current_time() + pause
        self.last_error = str(error)
        log.warning("make.failed", pool=self.template.name, box_id=box.box_id, error=str(error))
        self.give_up(box)
        if ticket is None:
            ticket = self._queue.pop(box.fingerprint)
        elif ticket.left:
            ticket = None
        else:
            self._queue.remove(ticket)
        if ticket is not None:
            ticket.refuse(error)

    def _guest(self, ref: BoxRef) -> Guest:
        async def connect() -> ByteStream:
            return await self._backend.connect(ref)

        return Guest(connect)

    async def _say_a_word(self) -> None:
        """Keep the guests of warm boxes from ending themselves as orphans, and find dead ones."""
        for box in self.stock.warm():
            if box.guest is None or box.state is not BoxState.WARM:
                continue
            try:
                with anyio.fail_after(_WORD_S):
                    await box.guest.hello()
            except (GuestLost, SandboxdError, TimeoutError) as error:
                if box.state is BoxState.WARM:
                    self.last_error = f"a warm box did not answer: {error}"
                    self.give_up(box)
