"""A pool whose makes fail again and again: callers hear why at once, and it mends by itself."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import LeaseState
from sandboxd.model.template import Resources
from sandboxd.pool.experience import FAILURES_TO_OPEN, Health
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import ErrorCode, Fault
from tests.support.front import OWNER, Front, World, open_world, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


def health(front: Front) -> Health:
    return front.rooms.house.pools["python"].status().state


async def refused(front: Front, **wish: object) -> SandboxdError:
    with pytest.raises(SandboxdError) as caught:
        await front.lease(**wish)
    return caught.value


async def broken(world: World, front: Front, *, times: int = 1000) -> None:
    """Have every make fail, and so many callers hear of it."""
    world.backend.faults.fail_next_make(ErrorCode.IMAGE_UNAVAILABLE, "no such image", times=times)
    for _ in range(FAILURES_TO_OPEN):
        await refused(front)


async def test_after_some_failures_callers_hear_why_at_once_and_nothing_is_made(
    world: World,
) -> None:
    async with world.daemon(template(ready=0)) as front:
        await broken(world, front)
        assert health(front) is Health.OPEN
        left = len(world.backend.faults._makes)
        began_at = anyio.current_time()
        for _ in range(20):
            error = await refused(front)
            assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
            assert error.retry_safe
            assert error.retry_after_s
            assert error.details["failures"] == FAILURES_TO_OPEN
        assert len(world.backend.faults._makes) == left
        assert anyio.current_time() - began_at < 0.1


async def test_who_waits_when_the_circuit_opens_is_answered_too(world: World) -> None:
    async with world.daemon(template(ready=0, max=50, starting=2)) as front:
        world.backend.faults.fail_next_make(ErrorCode.START_FAILED, "broken", times=1000)
        codes: list[ErrorCode] = []

        async def one() -> None:
            codes.append((await refused(front, wait_timeout_s=600)).code)

        began_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
        assert codes == [ErrorCode.START_FAILED] * 50
        assert anyio.current_time() - began_at < 10


async def test_one_caller_after_the_pause_tries_and_mends_it(world: World) -> None:
    async with world.daemon(template(ready=0)) as front:
        await broken(world, front, times=FAILURES_TO_OPEN + 1)
        await anyio.sleep(10)
        assert (await refused(front)).details == {}  # the try itself, which fails once more
        assert "circuit" in (await refused(front)).details
        await anyio.sleep(20)
        assert (await front.lease()).state is LeaseState.LEASED
        assert health(front) is Health.OK
        assert (await front.lease()).state is LeaseState.LEASED


async def test_only_one_tries_at_a_time() -> None:
    async with open_world(start_s=5.0) as world, world.daemon(template(ready=0)) as front:
        await broken(world, front, times=FAILURES_TO_OPEN)
        await anyio.sleep(20)
        states: list[LeaseState] = []

        async def attempt() -> None:
            states.append((await front.lease()).state)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt)
            await anyio.sleep(1)
            assert "circuit" in (await refused(front)).details
        assert states == [LeaseState.LEASED]


async def test_refill_tries_by_itself_and_the_pool_tells_of_fault_and_mend(world: World) -> None:
    world.backend.faults.fail_next_make(ErrorCode.START_FAILED, "broken", times=7)
    async with world.daemon(template(ready=3)) as front:
        pool = front.rooms.house.pools["python"]
        told = []
        with front.rooms.events.follow(owner=OWNER) as follower:
            await anyio.sleep(200)
            with anyio.move_on_after(1):
                while True:
                    told += await follower.batch()
        ours = [event for event in told if event.type.startswith("pool.")]
        assert [event.type for event in ours] == [EventType.POOL_FAULT, EventType.POOL_READY]
        assert {event.facts["template"] for event in ours} == {"python"}
        assert ours[0].facts["code"] is ErrorCode.START_FAILED
        assert pool.status().ready == 3
        assert pool.status().last_error is None


async def test_stock_is_handed_out_and_other_kinds_are_made_while_the_circuit_is_open(
    world: World,
) -> None:
    async with world.daemon(template(ready=1, max=20)) as front:
        await front.full()
        world.backend.faults.fail_next_make(ErrorCode.START_FAILED, "broken", times=5)
        assert (await front.lease()).warm
        pool = front.rooms.house.pools["python"]
        with anyio.fail_after(60):
            while pool.status().state is not Health.OPEN:  # noqa: ASYNC110 - no event here
                await anyio.sleep(0.05)
        cold = await front.lease(resources=Resources(memory_mb=64))
        assert cold.state is LeaseState.LEASED
        assert health(front) is Health.OPEN


async def test_other_kinds_that_fail_open_nothing(world: World) -> None:
    async with world.daemon(template(ready=1, max=20)) as front:
        await front.full()
        for _ in range(FAILURES_TO_OPEN * 2):
            world.backend.faults.fail_next_make(ErrorCode.IMAGE_UNAVAILABLE, "no such image")
            error = await refused(front, resources=Resources(memory_mb=64))
            assert error.code is ErrorCode.IMAGE_UNAVAILABLE
            assert error.details == {}
        assert health(front) is Health.OK
        assert (await front.lease()).warm


async def test_a_group_hears_of_an_open_circuit_too_and_may_be_the_one_that_tries(
    world: World,
) -> None:
    async with world.daemon(template(ready=0, max=8)) as front:
        await broken(world, front, times=FAILURES_TO_OPEN)
        with pytest.raises(SandboxdError) as caught:
            await front.group(4)
        assert caught.value.code is ErrorCode.IMAGE_UNAVAILABLE
        await anyio.sleep(20)
        assert len(await front.group(4)) == 4


async def test_a_changed_template_starts_with_a_closed_circuit(world: World) -> None:
    async with world.daemon(template(ready=0)) as front:
        await broken(world, front, times=FAILURES_TO_OPEN)
        await front.rooms.take({"python": template(ready=0)})
        assert health(front) is Health.OK
        assert (await front.lease()).state is LeaseState.LEASED
