"""Runs over random histories on a clock that jumps: whatever trainers say and daemons survive, a
lease ends `run_lost` if and only if its run was not heard of for a whole ttl of a living daemon.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.run import RunState
from sandboxd.wire.codes import EndReason, ErrorCode
from tests.conftest import jumping_loop
from tests.support.front import OWNER, Front, World, open_world, template

RUNS = st.sampled_from(["a", "b"])
# No sum of waits meets a sum of ttls, so that nothing is due at the moment it is looked at.
TTLS = st.sampled_from([10.5, 31.5, 100.5])
WAITS = st.sampled_from([1.0, 6.0, 20.0, 70.0])
STEPS = st.one_of(
    st.tuples(st.just("beat"), RUNS, TTLS),
    st.tuples(st.just("lease"), RUNS),
    st.tuples(st.just("wait"), WAITS),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("grade"), st.integers(0, 20)),
    st.tuples(st.just("delete"), RUNS),
    st.tuples(st.just("crash"), WAITS),
)


@dataclass
class RunModel:
    """due: None once it is lost."""

    ttl_s: float
    due: float | None


@dataclass
class LeaseModel:
    """What a lease should be."""

    lease: Lease
    run_id: str
    graded: bool = False
    end: EndReason | None = None


@dataclass
class History:
    """One world, a daemon in it, and what should be true."""

    world: World
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    runs: dict[str, RunModel] = field(default_factory=dict)
    leases: list[LeaseModel] = field(default_factory=list)

    async def start(self) -> None:
        # Stock for every lease of a history, so that none takes time.
        opened = self.world.daemon(template(ready=20, max=60, starting=60))
        self.front: Front = await self.stack.enter_async_context(opened)
        for run in self.runs.values():
            if run.due is not None:
                run.due = anyio.current_time() + run.ttl_s

    async def beat(self, run_id: str, ttl_s: float) -> None:
        beaten = self.front.rooms.runs.beat(run_id, ttl_s=ttl_s, owner=OWNER)
        if await self.refused(run_id, beaten):
            return
        self.runs[run_id] = RunModel(ttl_s, anyio.current_time() + ttl_s)

    async def lease(self, run_id: str) -> None:
        leased = self.front.lease(run_id=run_id, idle_timeout_s=0, timeout_s=86400)
        lease = await self.refused(run_id, leased)
        if isinstance(lease, Lease):
            self.leases.append(LeaseModel(lease, run_id))

    async def refused(self, run_id: str, attempt: Any) -> Any:
        """True where it is refused, as it must be for a lost run and for no other."""
        known = self.runs.get(run_id)
        if known is None or known.due is not None:
            done = await attempt
            return done if isinstance(done, Lease) else False
        with pytest.raises(SandboxdError) as caught:
            await attempt
        assert caught.value.code is ErrorCode.CONFLICT
        return True

    async def wait(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        for run_id, run in self.runs.items():
            if run.due is not None and run.due <= anyio.current_time():
                run.due = None
                for model in self.leases:
                    if model.run_id == run_id and not model.graded and model.end is None:
                        model.end = EndReason.RUN_LOST

    def live(self, number: int) -> LeaseModel | None:
        living = [model for model in self.leases if model.end is None]
        return living[number % len(living)] if living else None

    async def release(self, number: int) -> None:
        if (model := self.live(number)) is not None:
            await self.front.rooms.desk.release(model.lease.id, owner=OWNER)
            model.end = EndReason.RELEASED

    async def grade(self, number: int) -> None:
        if (model := self.live(number)) is not None and not model.graded:
            tenancy = self.front.tenancy(model.lease)
            await self.front.rooms.desk.begin_grading(tenancy, for_s=80000)
            model.graded = True

    async def delete(self, run_id: str) -> None:
        rooms = self.front.rooms
        leases = rooms.runs.leases_of(run_id, owner=OWNER)
        released, failed = await rooms.desk.release_all(leases, owner=OWNER)
        await rooms.runs.forget(run_id, owner=OWNER)
        mine = [m for m in self.leases if m.run_id == run_id and m.end is None]
        assert (sorted(released), failed) == (sorted(m.lease.id for m in mine), [])
        for model in mine:
            model.end = EndReason.RELEASED
        self.runs.pop(run_id, None)

    async def crash(self, down_s: float) -> None:
        await self.stack.aclose()
        await anyio.sleep(down_s)
        await self.start()

    def check(self) -> None:
        rooms = self.front.rooms
        for model in self.leases:
            end = self.front.now(model.lease).end
            assert (None if end is None else end.reason) == model.end
        for run_id, run in self.runs.items():
            status = rooms.runs.find(run_id, owner=OWNER)
            assert status.run.state is (RunState.ACTIVE if run.due else RunState.LOST)
            living = [m for m in self.leases if m.run_id == run_id and m.end is None]
            assert (status.leased, status.queued) == (len(living), 0)
        found = {
            known.run_id
            for state in RunState
            for known in rooms.runs.select(owner=OWNER, state=state)
        }
        assert found == set(self.runs)

    async def check_store(self) -> None:
        """What a crash right now would leave."""
        await anyio.sleep(0.01)
        stored = {run.run_id: run for run in await self.world.store.load_runs()}
        assert set(stored) == set(self.runs)
        for run_id, run in self.runs.items():
            assert stored[run_id].ttl_s == run.ttl_s
            assert stored[run_id].state is (RunState.ACTIVE if run.due else RunState.LOST)
        over = {m.lease.id for m in self.leases if m.end is not None}
        for lease in await self.world.store.load():
            assert (lease.state is not LeaseState.LEASED) == (lease.id in over)


async def live_through(steps: list[tuple[Any, ...]]) -> None:
    async with open_world() as world:
        history = History(world)
        try:
            await history.start()
            await history.front.full()
            for name, *told in steps:
                await getattr(history, name)(*told)
                history.check()
            await history.wait(3.0)  # the last readings and records of what ended
            await history.check_store()
        finally:
            await history.stack.aclose()


@pytest.mark.timeout(90)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=20))
def test_a_lease_ends_with_its_run_if_and_only_if_nobody_was_heard(
    steps: list[tuple[Any, ...]],
) -> None:
    backend, options = jumping_loop()
    anyio.run(live_through, steps, backend=backend, backend_options=options)
