"""Desk, reaper and store as a state machine on a clock that the machine moves: whatever callers,
boxes, disks and crashes do, in whatever order, each lease has one box, one end, and a record."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import End, Lease, LeaseState
from sandboxd.wire.codes import ErrorCode
from tests.faults.conftest import BadWorld, open_bad_world
from tests.faults.model import Model
from tests.faults.quiet import agree, calm
from tests.support.front import OWNER, Front, template

T = TypeVar("T")

MOST = 4
SECONDS = st.sampled_from([0.0, 0.3, 4.0, 12.0, 40.0, 130.0])
IDLE_S = st.sampled_from([0.0, 10.0, 50.0])
KEPT_S = 3600.0  # an ended lease


class Ground:
    """World and daemon in a loop of its own, whose time passes only while it is asked something."""

    def __init__(self) -> None:
        self._clock = trio.testing.MockClock()
        self._blocking = start_blocking_portal("trio", {"clock": self._clock})
        self._portal = self._blocking.__enter__()
        self._over, self._down = anyio.Event(), anyio.Event()
        self._tasks: TaskGroup
        self.world: BadWorld
        self.front: Front
        self._hosting, _ = self._portal.start_task(self._host)

    def do(self, act: Callable[[], Awaitable[T]]) -> T:
        """What it comes to. Raises what it raises."""

        async def with_time() -> T:
            self._clock.autojump_threshold = 0
            try:
                return await act()
            finally:
                self._clock.autojump_threshold = math.inf

        return self._portal.call(with_time)

    def look(self, at: Callable[[], T]) -> T:
        """The same, in no time."""

        async def at_once() -> T:
            return at()

        return self._portal.call(at_once)

    async def crash(self) -> None:
        """The daemon is gone from one moment to the next."""
        self._down.set()
        while self._living:
            await anyio.lowlevel.checkpoint()

    async def start(self) -> None:
        """Another daemon, over what the last one left."""
        self._down = anyio.Event()
        await self._tasks.start(self._live)

    def close(self) -> None:
        """The end of everything."""
        self._portal.call(self._over.set)
        self._hosting.result()
        self._blocking.__exit__(None, None, None)

    async def _host(self, *, task_status: TaskStatus[None]) -> None:
        async with open_bad_world() as self.world, anyio.create_task_group() as self._tasks:
            await self.start()
            task_status.started()
            await self._over.wait()
            self._tasks.cancel_scope.cancel()

    async def _live(self, *, task_status: TaskStatus[None]) -> None:
        try:
            async with self.world.daemon(template(ready=1, max=MOST)) as self.front:
                self._living = True
                task_status.started()
                await self._down.wait()
        finally:
            self._living = False


class DeskMachine(RuleBasedStateMachine):
    """Callers, clocks and mishaps against `Model`s of the leases."""

    leases = Bundle("leases")

    @initialize()
    def open(self) -> None:
        self.ground = Ground()
        self.models: list[Model] = []
        self.holders: dict[str, str] = {}  # box → the lease that had it
        self.ends: dict[str, End] = {}
        self.keys: dict[str, str] = {}
        self.blurred = False  # an end may be in no store: what came of it is not known any more

    @property
    def front(self) -> Front:
        return self.ground.front

    def attempt(self, act: Callable[[], Awaitable[T]], *codes: ErrorCode) -> T | None:
        """None where it fails in one of the ways it may: by name, and masked or listed here."""
        try:
            return self.ground.do(act)
        except SandboxdError as error:
            if not error.mask and error.code not in codes:
                raise
            return None

    # What callers do.

    @rule(target=leases, life_s=SECONDS, idle_s=IDLE_S, key=st.sampled_from([None, "a", "b"]))
    def lease(self, life_s: float, idle_s: float, key: str | None) -> Any:
        async def act() -> tuple[Lease, float]:
            wish: dict[str, Any] = {"timeout_s": 30 + life_s, "idle_timeout_s": idle_s}
            lease = await self.front.lease(wait_timeout_s=5, idempotency_key=key, **wish)
            return lease, anyio.current_time()

        # The key may be another wish's by now.
        come = self.attempt(act, ErrorCode.CONFLICT)
        if come is None:
            return multiple()
        lease, now = come
        assert lease.box is not None or lease.over
        if any(model.lease.id == lease.id for model in self.models):
            assert self.keys[lease.id] == key, "a key found another one's sandbox"
            return multiple()
        assert lease.state is LeaseState.LEASED
        assert lease.box is not None
        assert self.holders.setdefault(lease.box.box_id, lease.id) == lease.id, "used before"
        self.keys[lease.id] = key or ""
        ends_at = now + lease.terms.timeout_s
        self.models.append(Model(lease, ends_at, idle_s, used_at=now, touched_at=now))
        return self.models[-1]

    @rule(seconds=SECONDS)
    def ask_and_leave(self, seconds: float) -> None:
        async def act() -> None:
            queued = await self.front.lease(wait=False, wait_timeout_s=10, timeout_s=30)
            with anyio.move_on_after(seconds):
                await self.front.tenancy(queued).settled.wait()
            await self.front.rooms.desk.release(queued.id, owner=OWNER)

        self.attempt(act)

    @rule(model=leases)
    def release(self, model: Model) -> None:
        model.released = True
        done = self.ground.do(
            lambda: self.front.rooms.desk.release(model.lease.id, owner=OWNER, wait_s=2)
        )
        assert done.over
        if not self.ground.world.bad_store.full and not self.blurred:
            assert self.row_of(model).over, "told, but on no disk"

    @rule(model=leases, seconds=SECONDS)
    def use(self, model: Model, seconds: float) -> None:
        async def act() -> float:
            record = await self.front.run(model.lease, "sleep", str(seconds))
            assert record.exit_code == 0
            return anyio.current_time()

        ended = self.attempt(act, ErrorCode.LEASE_ENDED, ErrorCode.SANDBOX_LOST)
        now = self.ground.look(anyio.current_time)
        model.touched_at = now
        model.used_at = ended or model.used_at

    @rule(model=leases, seconds=SECONDS)
    def renew(self, model: Model, seconds: float) -> None:
        asked_at = self.ground.look(anyio.current_time)
        life_s = 40 + seconds

        async def act() -> Lease:
            return await self.front.rooms.desk.renew(model.lease.id, timeout_s=life_s, owner=OWNER)

        if self.attempt(act, ErrorCode.LEASE_ENDED, ErrorCode.SANDBOX_LOST) is not None:
            model.hard_at, model.hard_by = asked_at + life_s, 0.0
            assert (self.row_of(model).expires_at or 0) > 0
        elif self.ground.world.bad_store.full:  # it holds, and is not on disk: either is right
            ends = model.hard_at, asked_at + life_s
            model.hard_at, model.hard_by = min(ends), max(*ends, model.hard_by)
            self.blurred = True

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.ground.do(lambda: anyio.sleep(seconds))

    # What goes wrong.

    @rule(model=leases, silently=st.booleans())
    def box_dies(self, model: Model, silently: bool) -> None:
        assert model.lease.box is not None
        box_id, fake = model.lease.box.box_id, self.ground.world.sabotage.inner
        model.killed = True

        async def act() -> None:
            self.ground.world.sabotage.vanish(box_id) if silently else fake.die(box_id)
            await anyio.lowlevel.checkpoint()

        self.ground.do(act)

    @rule()
    def lines_break(self) -> None:
        self.ground.look(self.ground.world.sabotage.inner.drop_connections)

    @precondition(lambda self: not self.ground.world.bad_store.full)
    @rule()
    def store_fills(self) -> None:
        self.ground.world.bad_store.full = self.blurred = True

    @precondition(lambda self: self.ground.world.bad_store.full)
    @rule()
    def store_has_room(self) -> None:
        self.ground.world.bad_store.full = False

    @rule(down_s=SECONDS)
    def daemon_crashes(self, down_s: float) -> None:
        """Time without a daemon is nobody's idle time."""

        async def act() -> float:
            await self.ground.crash()
            await anyio.sleep(down_s)
            await self.ground.start()
            return anyio.current_time()

        for model in self.models:
            if not self.row_of(model).over:
                self.ends.pop(model.lease.id, None)
                model.killed = model.killed or self.blurred
        now = self.ground.do(act)
        for model in self.models:
            model.touched_at = now

    # What must be true.

    def row_of(self, model: Model) -> Lease:
        rows = self.ground.world.bad_store._leases
        assert model.lease.id in rows, "told, but in no store"
        return rows[model.lease.id]

    @invariant()
    def every_lease_is_as_its_holder_knows_it(self) -> None:
        now = self.ground.look(anyio.current_time)
        for model in self.models:
            row, shown = self.row_of(model), self.ground.look(partial(self.front.now, model.lease))
            assert row.box == model.lease.box or row.over
            if shown.end is None:
                assert not row.over, "an end that was taken back"
                assert not model.must_have_ended(now), (model, now)
                continue
            assert model.may_have_ended(shown.end.reason, now), (shown.end, model, now)
            assert self.ends.setdefault(model.lease.id, shown.end) == shown.end, "ended twice"

    @invariant()
    def no_box_is_anybody_else_s(self) -> None:
        held = [t.lease.box.box_id for t in self.front.rooms.desk.book if t.box and t.lease.box]
        assert len(held) == len(set(held)), "a box in two leases"
        (pool,) = self.front.rooms.house.pools.values()
        assert not {box.box_id for box in pool.stock.warm()} & set(self.holders), "used stock"
        assert pool.stock.exists <= MOST

    def teardown(self) -> None:
        """All clocks run out; an hour later not even a record is left."""
        try:
            self.ground.world.bad_store.full = False
            self.ground.do(self._to_the_end)
        finally:
            self.ground.close()

    async def _to_the_end(self) -> None:
        await anyio.sleep(400)
        await calm(self.front)
        await agree(self.front)
        assert all(self.front.now(model.lease).over for model in self.models)
        await anyio.sleep(KEPT_S + 100)
        assert not list(self.front.rooms.desk.book)
        assert await self.front.store.load() == []
        assert (await self.front.run(await self.front.lease(), "true")).exit_code == 0


_SETTINGS = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.timeout(120)
def test_any_order_of_calls_and_mishaps_leaves_each_lease_one_box_and_one_end() -> None:
    run_state_machine_as_test(DeskMachine, settings=_SETTINGS)


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_many_long_orders_of_calls_and_mishaps_do_too() -> None:
    long = settings(_SETTINGS, max_examples=400, stateful_step_count=50)
    run_state_machine_as_test(DeskMachine, settings=long)
