"""Random singles and groups over two pools and one house: everybody is served or told, in time,
nobody gets a part of a group, no bound is ever broken, and nothing is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.template import Resources
from sandboxd.wire.codes import ErrorCode
from tests.faults.quiet import agree, calm
from tests.support.front import OWNER, Front, World, open_world, template

MAX = {"a": 4, "b": 5}
MOST = 6
_LATE_S = 21.0  # a claim that hangs, and the one after it
NAMED = {
    ErrorCode.CAPACITY,
    ErrorCode.START_FAILED,
    ErrorCode.BACKEND_UNAVAILABLE,
    ErrorCode.SANDBOX_LOST,
    ErrorCode.LEASE_ENDED,  # somebody released it while it waited
}


@dataclass(frozen=True)
class Request:
    """One caller: comes at a time, wants so many together, and holds what it gets for a while."""

    at: float
    pool: str
    count: int
    run: str
    priority: int
    hold_s: float
    cold: bool


@dataclass(frozen=True)
class Trouble:
    """Something goes wrong at a time: the next make fails, or a box dies."""

    at: float
    kind: str


times = st.floats(0, 60).map(lambda seconds: round(seconds, 1))
requests = st.builds(
    Request,
    at=times,
    pool=st.sampled_from(["a", "b"]),
    count=st.sampled_from([1, 1, 2, 3, 4]),
    run=st.sampled_from(["r", "s", "t"]),
    priority=st.sampled_from([0, 0, 0, 7]),
    hold_s=st.floats(0, 15).map(lambda seconds: round(seconds, 1)),
    cold=st.booleans(),
)
troubles = st.builds(
    Trouble, at=times, kind=st.sampled_from(["fail", "hang", "die", "vanish", "release"])
)


class Play:
    """One history, and what its callers met."""

    def __init__(self, front: Front, *, wait_s: float) -> None:
        self.front = front
        self.wait_s = wait_s
        self.refused: list[ErrorCode] = []
        self.granted = 0

    async def call(self, request: Request) -> None:
        await anyio.sleep(request.at)
        began_at = anyio.current_time()
        try:
            leases = await self._ask(request)
        except SandboxdError as error:
            self.refused.append(error.code)
            return
        finally:
            assert anyio.current_time() - began_at <= self.wait_s + _LATE_S
        assert len(leases) == request.count
        self.granted += 1
        await anyio.sleep(request.hold_s)
        for lease in leases:
            await self.front.rooms.desk.release(lease.id, owner=OWNER)

    async def _ask(self, request: Request) -> list[Lease]:
        wish: dict[str, Any] = {
            "template": request.pool,
            "run_id": request.run,
            "priority": request.priority,
            "wait_timeout_s": self.wait_s,
        }
        if request.cold:
            wish["resources"] = Resources(memory_mb=64)
        if request.count == 1:
            return [await self.front.lease(**wish)]
        return await self.front.group(request.count, **wish)

    async def hurt(self, trouble: Trouble) -> None:
        await anyio.sleep(trouble.at)
        backend = self.front.backend
        alive = sorted(await self.front.box_ids())
        match trouble.kind:
            case "fail":
                backend.faults.fail_next_make(ErrorCode.START_FAILED, "scripted")
            case "hang":
                backend.faults.hang_next_make()
            case "die" if alive:
                backend.die(alive[0])
            case "vanish" if alive:
                backend.vanish(alive[-1])
            case "release":
                for tenancy in self.front.rooms.desk.book:
                    if tenancy.lease.state is LeaseState.QUEUED:
                        await self.front.rooms.desk.release(tenancy.lease.id, owner=OWNER)
                        return
            case _:
                pass

    async def watch(self) -> None:
        house = self.front.rooms.house
        while True:
            assert house.exists <= MOST
            for name, pool in house.pools.items():
                assert pool.stock.exists <= MAX[name]
            await anyio.sleep(0.5)


def played(run: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_world(start_s=0.5) as world:
            await run(world)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def perform(
    world: World, calls: list[Request], hurts: list[Trouble], *, wait_s: float
) -> Play:
    pools = [template(name, ready=1, max=most, starting=2) for name, most in MAX.items()]
    async with world.daemon(*pools, most=MOST) as front:
        play = Play(front, wait_s=wait_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play.watch)
            async with anyio.create_task_group() as callers:
                for request in calls:
                    callers.start_soon(play.call, request)
                for trouble in hurts:
                    callers.start_soon(play.hurt, trouble)
            tasks.cancel_scope.cancel()
        kinds = {trouble.kind for trouble in hurts}
        if "hang" not in kinds:  # else a make is given up much later
            await calm(front)
        if not kinds & {"hang", "vanish"}:  # stock that went without a word is not known of yet
            await agree(front)
        assert set(play.refused) <= NAMED
        for pool in front.rooms.house.pools.values():
            assert pool.status().queued == 0
        assert front.rooms.house._gathering is None
    return play


@pytest.mark.timeout(120)
@given(calls=st.lists(requests, min_size=1, max_size=25))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_who_waits_long_enough_is_always_served(calls: list[Request]) -> None:
    async def run(world: World) -> None:
        play = await perform(world, calls, [], wait_s=5000)
        assert play.refused == []
        assert play.granted == len(calls)

    played(run)


@pytest.mark.timeout(120)
@given(
    calls=st.lists(requests, min_size=1, max_size=25),
    hurts=st.lists(troubles, max_size=10),
    wait_s=st.sampled_from([0.0, 2.0, 10.0, 30.0]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_goes_wrong_everybody_is_answered_in_time_and_nothing_is_left(
    calls: list[Request], hurts: list[Trouble], wait_s: float
) -> None:
    async def run(world: World) -> None:
        await perform(world, calls, hurts, wait_s=wait_s)

    played(run)
