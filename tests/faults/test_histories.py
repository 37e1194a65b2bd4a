"""Random histories of callers, clocks, deaths, faults and crashes against a plain model of a lease:
no box in two leases, no used box in stock, every lease ends by its clocks and for its reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.template import Resources, Template
from sandboxd.wire.codes import ErrorCode
from tests.conftest import jumping_loop
from tests.faults.conftest import BadWorld, open_bad_world
from tests.faults.model import Model
from tests.faults.quiet import agree, calm
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, Front, template

_ACTS = (
    *(
        "lease",
        "lease",
        "lease",
        "cold",
        "later",
        "leave",
        "release",
        "use",
        "renew",
        "wait",
        "wait",
    ),
    *("kill", "vanish", "fail", "sabotage", "full", "crash", "retire", "cut", "shrink"),
)
Step = tuple[str, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(_ACTS),
        st.integers(0, 20),
        st.sampled_from([0.0, 0.5, 3.0, 9.0, 25.0, 60.0]),
    ),
    max_size=30,
)
_MOST = 5


class History:
    """Plays steps over one daemon after another, and holds them against the model."""

    def __init__(self, world: BadWorld) -> None:
        self.world = world
        self.models: list[Model] = []
        self.seen: dict[str, str] = {}  # box → the lease that had it
        self.templates: tuple[Template, ...] = ()
        self.front: Front

    async def play(self, steps: list[Step]) -> None:
        """All steps, with a new daemon after each `crash`."""
        lives: list[list[Step]] = [[]]
        for step in steps:
            if step[0] == "crash":
                lives.append([])
            else:
                lives[-1].append(step)
        for life in lives:
            async with self.world.daemon(
                template(ready=2, max=_MOST), most=_MOST + 1
            ) as self.front:
                for model in self.models:  # time without a daemon is nobody's idle time
                    model.touched_at = anyio.current_time()
                for step in life:
                    await self._step(*step)
                    self._check()
                if life is lives[-1]:
                    await self._end()

    async def _step(self, name: str, number: int, seconds: float) -> None:
        model = self.models[number % len(self.models)] if self.models else None
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "lease": lambda: self._lease(seconds, idle_timeout_s=number),
            "cold": lambda: self._lease(seconds, resources=Resources(memory_mb=64 + number)),
            "later": lambda: self._later(number, seconds),
            "leave": lambda: self._leave(number, seconds),
            "wait": lambda: anyio.sleep(seconds),
            "fail": lambda: self._fail(number),
            "sabotage": lambda: self._sabotage(number),
            "full": lambda: self._full(seconds),
            "retire": lambda: self._retire(seconds),
            "cut": self._cut_lines,
            "shrink": lambda: self._shrink(number),
        }
        about: dict[str, Callable[[Model], Awaitable[Any]]] = {
            "release": self._release,
            "use": lambda one: self._use(one, seconds),
            "renew": lambda one: self._renew(one, seconds),
            "kill": lambda one: self._kill(one, vanish=False),
            "vanish": lambda one: self._kill(one, vanish=True),
        }
        try:
            if name in acts:
                await acts[name]()
            elif model is not None:
                await about[name](model)
        except SandboxdError as error:
            if not error.mask and "released" not in error.detail:
                raise

    # What callers do.

    async def _lease(self, seconds: float, **wish: Any) -> None:
        lease = await self.front.lease(
            timeout_s=30 + seconds, wait_timeout_s=5 + seconds, **{"idle_timeout_s": 0, **wish}
        )
        self._granted(lease)

    def _granted(self, lease: Lease) -> None:
        assert lease.box is not None
        assert self.seen.setdefault(lease.box.box_id, lease.id) == lease.id, "handed out twice"
        now = anyio.current_time()
        terms = lease.terms
        self.models.append(
            Model(lease, now + terms.timeout_s, terms.idle_timeout_s, used_at=now, touched_at=now)
        )

    async def _later(self, number: int, seconds: float) -> None:
        """Ask without waiting, and come back for it."""
        lease = await self.front.lease(
            wait=False, timeout_s=60, wait_timeout_s=10, idle_timeout_s=0, priority=number % 3
        )
        with anyio.move_on_after(seconds):
            await self.front.tenancy(lease).settled.wait()
        shown = self.front.now(lease)
        if shown.state is LeaseState.LEASED:
            self._granted(shown)
            self.models[-1].hard_at = self.front.tenancy(lease).hard_at or 0.0
        else:
            await self.front.rooms.desk.release(lease.id, owner=OWNER)

    async def _leave(self, number: int, seconds: float) -> None:
        """Ask, and go away: for good, or with a key that is never used again."""
        with anyio.move_on_after(seconds / 10):
            lease = await self.front.lease(wait_timeout_s=60, timeout_s=40)
            await self.front.rooms.desk.release(lease.id, owner=OWNER)

    async def _release(self, model: Model) -> None:
        model.released = True
        await self.front.rooms.desk.release(model.lease.id, owner=OWNER)

    async def _use(self, model: Model, seconds: float) -> None:
        try:
            record = await self.front.run(model.lease, "sleep", str(seconds / 10))
            assert record.exit_code == 0
            model.used_at = model.touched_at = anyio.current_time()
        except SandboxdError as error:
            allowed = {ErrorCode.LEASE_ENDED, ErrorCode.SANDBOX_LOST, ErrorCode.BACKEND_UNAVAILABLE}
            if error.code not in allowed:
                raise
            model.touched_at = anyio.current_time()

    async def _renew(self, model: Model, seconds: float) -> None:
        asked_at = anyio.current_time()
        try:
            await self.front.rooms.desk.renew(model.lease.id, timeout_s=40 + seconds, owner=OWNER)
        except SandboxdError as error:
            if error.code is not ErrorCode.DISK_FULL:
                raise
        model.hard_at = asked_at + 40 + seconds

    # What goes wrong.

    async def _kill(self, model: Model, *, vanish: bool) -> None:
        assert model.lease.box is not None
        model.killed = True
        box_id = model.lease.box.box_id
        if vanish:
            self.world.sabotage.vanish(box_id)
        else:
            self.world.sabotage.inner.die(box_id)
        await anyio.lowlevel.checkpoint()

    async def _fail(self, number: int) -> None:
        self.world.sabotage.script["make"].extend([Mishap.FAIL] * (number % 4))

    async def _sabotage(self, number: int) -> None:
        verb = ("connect", "dispose", "look", "read")[number % 4]
        mishap = (Mishap.FAIL, Mishap.SLOW, Mishap.DROP)[number % 3]
        if verb != "connect" or mishap is not Mishap.FAIL:
            self.world.sabotage.script[verb].append(mishap)

    async def _full(self, seconds: float) -> None:
        self.world.bad_store.full = True
        # An end that could not be written, and then a crash: its box is gone, nobody knows why.
        for model in self.models:
            model.killed = True
        await anyio.sleep(seconds)
        self.world.bad_store.full = False

    async def _retire(self, seconds: float) -> None:
        await self.front.rooms.take({"other": template("other", ready=1, max=2)})
        await anyio.sleep(seconds)
        await self.front.rooms.take({"python": template(ready=2, max=_MOST)})

    async def _cut_lines(self) -> None:
        self.world.sabotage.inner.drop_connections()
        await anyio.lowlevel.checkpoint()

    async def _shrink(self, number: int) -> None:
        pool = self.front.rooms.house.pools["python"]
        pool.adjust(replace(pool.settings, ready=number % 3, max=1 + number % _MOST), paused=False)
        await anyio.sleep(1)

    # What must be true.

    def _check(self) -> None:
        now = anyio.current_time()
        for model in self.models:
            shown = self.front.now(model.lease)
            if shown.end is not None:
                assert model.may_have_ended(shown.end.reason, now), (shown.end, model, now)
            else:
                assert not model.must_have_ended(now), (shown, model, now)
        held = [t.lease.box.box_id for t in self.front.rooms.desk.book if t.box and t.lease.box]
        assert len(held) == len(set(held)), "a box in two leases"
        for pool in self.front.rooms.house.pools.values():
            assert not {box.box_id for box in pool.stock.warm()} & set(self.seen), "used stock"
        assert self.front.rooms.house.exists <= _MOST + 1 or any(self.seen)

    async def _end(self) -> None:
        self.world.sabotage.script.clear()
        self.world.bad_store.full = False
        await self.front.rooms.take({"python": template(ready=2, max=_MOST)})
        await anyio.sleep(200)
        self._check()
        await calm(self.front)
        await agree(self.front)
        assert all(self.front.now(model.lease).over for model in self.models)
        assert (await self.front.run(await self.front.lease(), "true")).exit_code == 0


def _play(steps: list[Step]) -> None:
    async def one() -> None:
        async with open_bad_world() as world:
            await History(world).play(steps)

    name, options = jumping_loop()
    anyio.run(one, backend=name, backend_options=options)


@given(steps=STEPS)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_history_ends_as_its_clocks_and_causes_say(steps: list[Step]) -> None:
    _play(steps)


@pytest.mark.slow
@pytest.mark.timeout(500)
@given(steps=STEPS)
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_histories_end_as_their_clocks_and_causes_say(steps: list[Step]) -> None:
    _play(steps)
