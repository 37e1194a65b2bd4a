"""Queue, house and templates under pressure: who waits is answered, in a fair order."""

from __future__ import annotations

import sys
from dataclasses import replace

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.template import Resources
from sandboxd.wire.codes import EndReason, ErrorCode
from tests.faults.conftest import BadWorld
from tests.faults.quiet import agree, calm
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, Front, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def granted(front: Front, lease: Lease, *, within_s: float = 30) -> None:
    with anyio.fail_after(within_s):
        await front.tenancy(lease).settled.wait()
    assert front.now(lease).state is LeaseState.LEASED


async def test_stock_of_one_pool_does_not_keep_out_callers_of_another(world: BadWorld) -> None:
    templates = (template("a", ready=5, max=10), template("b", ready=0, max=10))
    async with world.daemon(*templates, most=5) as front:
        await front.full("a")
        leases = [await front.lease(template="b", wait_timeout_s=30) for _ in range(3)]
        assert {lease.state for lease in leases} == {LeaseState.LEASED}
        assert len(await front.box_ids()) <= 5
        for lease in leases:
            await front.rooms.desk.release(lease.id, owner=OWNER)
        await front.full("a")


async def test_room_goes_to_who_has_waited_longest_whichever_the_pool(world: BadWorld) -> None:
    templates = (template("a", ready=0, max=10), template("b", ready=0, max=10))
    async with world.daemon(*templates, most=1) as front:
        held = await front.lease(template="a")
        waiting = [
            await front.lease(template=name, wait=False, wait_timeout_s=900)
            for name in ("b", "a", "b", "a")
        ]
        for lease in waiting:
            await front.rooms.desk.release(held.id, owner=OWNER)
            await granted(front, lease)
            held = lease


async def test_a_pool_with_many_callers_lets_another_pool_s_first_one_go_next(
    world: BadWorld,
) -> None:
    templates = (template("a", ready=0, max=10), template("b", ready=0, max=10))
    async with world.daemon(*templates, most=1) as front:
        held = await front.lease(template="a")
        many = [await front.lease(template="a", wait=False, wait_timeout_s=900) for _ in range(100)]
        late = await front.lease(template="b", wait=False, wait_timeout_s=900)
        await front.rooms.desk.release(held.id, owner=OWNER)
        await granted(front, late)
        await front.rooms.desk.release(late.id, owner=OWNER)
        await granted(front, many[0])


async def test_a_run_s_first_request_is_next_however_many_another_run_has(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=0, max=2)) as front:
        held = [await front.lease(run_id="big") for _ in range(2)]
        many = [await front.lease(run_id="big", wait=False, wait_timeout_s=900) for _ in range(200)]
        small = await front.lease(run_id="small", wait=False, wait_timeout_s=900)
        ticket = front.tenancy(small).ticket
        assert ticket is not None
        assert front.tenancy(small).pool.position(ticket) == 1
        for lease in held:
            await front.rooms.desk.release(lease.id, owner=OWNER)
        await granted(front, small)
        await granted(front, many[0])
        states = {front.now(lease).state for lease in many[1:]}
        assert states <= {LeaseState.QUEUED, LeaseState.MAKING}


async def test_a_caller_whose_box_was_no_good_keeps_its_place(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=1, queue=2)) as front:
        held = await front.lease()
        first = await front.lease(wait=False, wait_timeout_s=900)
        second = await front.lease(wait=False, wait_timeout_s=900)
        world.sabotage.script["connect"].append(Mishap.VANISH)
        await front.rooms.desk.release(held.id, owner=OWNER)
        await granted(front, first)
        assert front.now(second).state is LeaseState.QUEUED
        await front.rooms.desk.release(first.id, owner=OWNER)
        await granted(front, second)


async def test_stock_that_came_while_a_box_was_tried_in_vain_serves_the_caller(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        world.sabotage.script["connect"].append(Mishap.HANG)  # ten seconds, then the next box
        queued = await front.lease(wait=False, wait_timeout_s=60)
        await anyio.sleep(1)
        pool = front.rooms.house.pools["python"]
        pool.adjust(replace(pool.settings, ready=1), paused=False)
        await front.full()
        pool.adjust(pool.settings, paused=True)  # so that it cannot be a box made afterwards
        await granted(front, queued, within_s=15)


async def test_callers_of_a_template_that_is_taken_away_are_served_or_told_in_time(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=1, max=1)) as front:
        await front.full()
        held = await front.lease()
        served = await front.lease(wait=False, wait_timeout_s=900)
        late = await front.lease(wait=False, wait_timeout_s=20)
        await front.rooms.take({"other": template("other")})
        await front.rooms.desk.release(held.id, owner=OWNER)
        await granted(front, served)
        with anyio.fail_after(30):
            await front.tenancy(late).settled.wait()
        end = front.now(late).end
        assert end is not None
        assert (end.reason, end.code) == (EndReason.MAKE_FAILED, ErrorCode.CAPACITY)
        await front.rooms.desk.release(served.id, owner=OWNER)
        await calm(front)
        assert await front.box_ids() == set()


async def test_a_template_that_comes_back_has_its_stock_again(world: BadWorld) -> None:
    python = template(ready=2)
    async with world.daemon(python) as front:
        await front.full()
        await front.rooms.take({"other": template("other")})
        await calm(front)
        assert await front.box_ids() == set()
        await front.rooms.take({"python": python})
        await front.full()


async def test_a_changed_template_serves_those_who_asked_for_the_old_one(world: BadWorld) -> None:
    async with world.daemon(template(ready=1, max=2)) as front:
        holders = [await front.lease() for _ in range(2)]
        waiting = await front.lease(wait=False, wait_timeout_s=900)
        cold = await front.lease(wait=False, wait_timeout_s=900, resources=Resources(memory_mb=64))
        new = template(ready=1, max=2, spec=cold.terms.spec)  # what was cold is stock now
        await front.rooms.take({"python": new})
        for lease in holders:
            await front.rooms.desk.release(lease.id, owner=OWNER)
        await granted(front, waiting)
        await granted(front, cold)
        boxes = [front.now(lease).box for lease in (waiting, cold)]
        assert len({box.box_id for box in boxes if box}) == 2
        await front.rooms.desk.release(waiting.id, owner=OWNER)
        await calm(front)
        await agree(front)


async def test_clearing_everything_with_callers_in_the_queue_answers_them(world: BadWorld) -> None:
    async with world.daemon(template(ready=1, max=2)) as front:
        await front.full()
        leases = [await front.lease() for _ in range(2)]
        told = await front.lease(wait=False, wait_timeout_s=900)
        codes: list[ErrorCode] = []

        async def one() -> None:
            try:
                await front.lease(wait_timeout_s=900)
            except SandboxdError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
            await anyio.sleep(1)
            assert await front.rooms.clear(reopen=True) == 0
        assert codes == [ErrorCode.SHUTTING_DOWN] * 3
        assert front.now(told).over
        ends = [front.now(lease).end for lease in leases]
        assert {end.reason for end in ends if end} == {EndReason.SHUTDOWN}
        await front.full()
        assert (await front.lease()).state is LeaseState.LEASED


async def test_clearing_in_the_middle_of_a_claim_leaves_no_lease(world: BadWorld) -> None:
    async with world.daemon(template(ready=1, max=2)) as front:
        await front.full()
        world.sabotage.script["connect"].append(Mishap.SLOW)
        errors: list[SandboxdError] = []

        async def one() -> None:
            try:
                await front.lease()
            except SandboxdError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await anyio.sleep(1)
            assert await front.rooms.clear() == 0
        assert [error.mask for error in errors] == [True]
        assert await front.box_ids() == set()


async def test_over_the_queue_bound_nothing_of_a_request_is_kept(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=1, queue=1)) as front:
        await front.lease()
        await front.lease(wait=False, wait_timeout_s=900)
        for number in range(50):
            with pytest.raises(SandboxdError) as caught:
                await front.lease(wait=False, idempotency_key=f"k{number}", secrets={"A": "hush"})
            assert caught.value.code is ErrorCode.CAPACITY
            assert caught.value.retry_after_s is not None
        assert len(front.rooms.desk.book) == 2


async def test_a_queued_lease_that_is_released_says_so_after_a_restart_too(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        await front.lease()
        queued = await front.lease(wait=False, wait_timeout_s=900)
        done = await front.rooms.desk.release(queued.id, owner=OWNER)
        assert done.end is not None
        assert (done.end.reason, done.end.mask) == (EndReason.RELEASED, False)
    async with world.daemon(template(ready=0, max=1)) as front:
        assert front.now(queued).end == done.end


async def test_a_request_that_a_restart_cut_off_says_that_asking_again_helps(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        await front.lease()
        queued = await front.lease(wait=False, wait_timeout_s=900)
    async with world.daemon(template(ready=0, max=1)) as front:
        end = front.now(queued).end
        assert end is not None
        assert (end.reason, end.code) == (EndReason.MAKE_FAILED, ErrorCode.SHUTTING_DOWN)


async def test_time_without_a_daemon_is_nobody_s_idle_time(world: BadWorld) -> None:
    async with world.daemon(template(ready=0)) as front:
        lease = await front.lease(idle_timeout_s=20, timeout_s=500)
        await anyio.sleep(15)
    await anyio.sleep(100)
    async with world.daemon(template(ready=0)) as front:
        await anyio.sleep(15)
        assert front.now(lease).state is LeaseState.LEASED
        await anyio.sleep(15)
        end = front.now(lease).end
        assert end is not None
        assert end.reason is EndReason.IDLE


async def test_a_kept_place_is_counted_from_the_last_departure(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        holder = await front.lease()
        for _ in range(3):  # 50 s of waiting, 40 s of absence, three times: never a minute away
            with anyio.move_on_after(50):
                await front.lease(wait_timeout_s=1000, idempotency_key="k")
            await anyio.sleep(40)
        await front.rooms.desk.release(holder.id, owner=OWNER)
        assert (await front.lease(idempotency_key="k")).state is LeaseState.LEASED
        assert len(front.rooms.desk.book) == 2


async def test_ten_thousand_ended_leases_an_hour_stay_small(world: BadWorld) -> None:
    async with world.daemon(template(ready=1, max=4)) as front:
        await front.full()
        lease = await front.lease(env={"BIG": "x" * 100_000}, secrets={"S": "hush"})
        await front.rooms.desk.release(lease.id, owner=OWNER, wait_s=10)
        tenancy = front.tenancy(lease)
        assert tenancy.box is None
        assert tenancy.order is None
        assert not tenancy.lease.terms.env
        assert sys.getsizeof(tenancy.diary) < 2000
