"""Leases are granted from stock, from the queue, or not at all, and always to one caller each."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.leases.terms import LeaseWish, resolve
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.template import Resources
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.support.front import OWNER, Front, World, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def first_settled(front: Front, waiting: dict[str, Lease]) -> str:
    """The name of the lease that is granted next."""
    names: list[str] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def watch(name: str, lease: Lease) -> None:
                await front.tenancy(lease).settled.wait()
                names.append(name)
                tasks.cancel_scope.cancel()

            for name, lease in waiting.items():
                tasks.start_soon(watch, name, lease)
    return names[0]


async def test_a_warm_lease_takes_stock_and_the_pool_fills_up_again(front: Front) -> None:
    before = await front.box_ids()
    lease = await front.lease()
    assert lease.state is LeaseState.LEASED
    assert lease.warm
    assert lease.box is not None
    assert lease.box.box_id in before
    await front.full()
    assert len(await front.box_ids()) == 3


async def test_what_differs_from_the_template_makes_a_cold_lease_that_says_why(
    front: Front,
) -> None:
    lease = await front.lease(resources=Resources(memory_mb=1024))
    assert not lease.warm
    assert lease.terms.cold_because == ("resources",)


async def test_late_bound_env_and_secrets_reach_a_warm_box_and_no_store(front: Front) -> None:
    lease = await front.lease(env={"A": "1"}, secrets={"S": "hush"})
    assert lease.warm
    record = await front.run(lease, "printenv", "A")
    assert record.stdout.head == b"1\n"
    record = await front.run(lease, "printenv", "S")
    assert record.stdout.head == b"hush\n"
    assert "hush" not in repr(await front.store.load())


async def test_a_thousand_callers_get_a_box_each_of_their_own(world: World) -> None:
    async with world.daemon(template(ready=10, max=50, starting=8)) as front:
        seen: list[str] = []

        async def one() -> None:
            lease = await front.lease(wait_timeout_s=3600)
            assert lease.box is not None
            seen.append(lease.box.box_id)
            await anyio.sleep(5)
            await front.rooms.desk.release(lease.id, owner=OWNER)

        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(one)
        assert len(set(seen)) == 1000


async def test_a_full_pool_makes_callers_wait_for_a_release(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        first = await front.lease()
        second = await front.lease(wait=False)
        assert front.now(second).state is LeaseState.QUEUED
        await front.rooms.desk.release(first.id, owner=OWNER)
        with anyio.fail_after(10):
            await front.tenancy(second).settled.wait()
        assert front.now(second).state is LeaseState.LEASED


async def test_who_is_not_served_in_time_hears_capacity_and_leaves_no_trace(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        await front.lease()
        began = anyio.current_time()
        with pytest.raises(SandboxdError) as caught:
            await front.lease(wait_timeout_s=5, idempotency_key="k")
        assert caught.value.code is ErrorCode.CAPACITY
        assert caught.value.retry_safe
        assert caught.value.details["position"] == 0
        assert caught.value.detail.endswith("1 are leased, 0 are being made, 1 may be")
        assert anyio.current_time() - began == pytest.approx(5, abs=0.1)
        assert len(front.rooms.desk.book) == 1


async def test_over_the_queue_bound_callers_hear_capacity_at_once(world: World) -> None:
    async with world.daemon(template(ready=0, max=1, queue=2)) as front:
        await front.lease()
        for _ in range(2):
            await front.lease(wait=False)
        with pytest.raises(SandboxdError) as caught:
            await front.lease()
        assert caught.value.code is ErrorCode.CAPACITY
        assert caught.value.retry_after_s is not None


async def test_priority_goes_first_and_equals_in_their_order(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        holder = await front.lease()
        waiting = {
            name: await front.lease(wait=False, priority=priority)
            for name, priority in (("a", 0), ("b", 0), ("urgent", 5))
        }
        served: list[str] = []
        current = holder
        for _ in range(3):
            await front.rooms.desk.release(current.id, owner=OWNER)
            name = await first_settled(front, {n: w for n, w in waiting.items() if n not in served})
            served.append(name)
            current = waiting[name]
        assert served == ["urgent", "a", "b"]


async def test_one_key_is_one_sandbox_for_ten_callers_at_once(front: Front) -> None:
    ids: list[str] = []

    async def one() -> None:
        ids.append((await front.lease(idempotency_key="key", body_digest="d")).id)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(one)
    assert len(set(ids)) == 1
    await front.rooms.desk.release(ids[0], owner=OWNER)
    again = await front.lease(idempotency_key="key", body_digest="d")
    assert again.id == ids[0]
    assert again.over
    with pytest.raises(SandboxdError) as caught:
        await front.lease(idempotency_key="key", body_digest="other")
    assert caught.value.code is ErrorCode.CONFLICT


async def test_a_caller_who_goes_away_while_waiting_loses_its_place(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        holder = await front.lease()
        with anyio.move_on_after(1):
            await front.lease(wait_timeout_s=100)
        await front.rooms.desk.release(holder.id, owner=OWNER, wait_s=10)
        await anyio.sleep(1)
        assert len(front.rooms.desk.book) == 1
        assert await front.box_ids() == set()


async def test_an_idempotency_key_keeps_the_place_for_a_minute(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        holder = await front.lease()
        with anyio.move_on_after(1):
            await front.lease(wait_timeout_s=1000, idempotency_key="k")
        await anyio.sleep(30)
        await front.rooms.desk.release(holder.id, owner=OWNER)
        lease = await front.lease(idempotency_key="k")
        assert lease.state is LeaseState.LEASED
        with anyio.move_on_after(1):
            await front.lease(wait_timeout_s=1000, idempotency_key="other")
        await anyio.sleep(61)
        await front.rooms.desk.release(lease.id, owner=OWNER, wait_s=10)
        await anyio.sleep(1)
        assert [t.lease.state for t in front.rooms.desk.book] == [LeaseState.ENDED] * 2


async def test_a_failed_make_is_told_with_its_fault_and_the_pool_recovers(world: World) -> None:
    async with world.daemon(template(ready=0)) as front:
        front.backend.faults.fail_next_make(
            ErrorCode.IMAGE_UNAVAILABLE, "no such image", fault=Fault.TASK
        )
        with pytest.raises(SandboxdError) as caught:
            await front.lease()
        assert (caught.value.code, caught.value.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
        status = front.rooms.house.pools["python"].status()
        assert status.last_error == "image_unavailable: no such image"
        lease = await front.lease()
        assert lease.state is LeaseState.LEASED
        assert front.rooms.house.pools["python"].status().last_error is None


async def test_a_failed_make_of_a_lease_that_is_not_waited_for_shows_under_its_id(
    world: World,
) -> None:
    async with world.daemon(template(ready=0)) as front:
        front.backend.faults.fail_next_make(ErrorCode.START_FAILED, "broken")
        lease = await front.lease(wait=False)
        with anyio.fail_after(10):
            await front.tenancy(lease).settled.wait()
        end = front.now(lease).end
        assert end is not None
        assert (end.reason, end.code, end.mask) == (
            EndReason.MAKE_FAILED,
            ErrorCode.START_FAILED,
            True,
        )


async def test_failing_makes_are_backed_off(world: World) -> None:
    world.backend.faults.fail_next_make(times=1000)
    async with world.daemon(template(ready=2, starting=2)) as front:
        await anyio.sleep(120)
        # 0.5, 1, 2, … up to 30 s apart: some dozen tries in two minutes, not thousands
        left = 0
        while world.backend.faults.take_make() is not None:
            left += 1
        assert 1000 - left < 40
        assert front.rooms.house.pools["python"].status().last_error is not None


async def test_a_dead_warm_box_is_never_handed_out(front: Front) -> None:
    for box_id in await front.box_ids():
        front.backend.vanish(box_id)  # nobody tells: the claim finds out
    lease = await front.lease()
    assert (await front.run(lease, "true")).exit_code == 0


async def test_a_make_that_comes_late_leaves_no_box(world: World) -> None:
    world.backend.faults.late_next_make()
    async with world.daemon(template(ready=1)) as front:
        await anyio.sleep(700)
        await front.full()
        await anyio.sleep(100)
        assert len(await front.box_ids()) == 1


async def test_no_more_boxes_exist_than_the_house_has_room_for(world: World) -> None:
    templates = (template("a", ready=5, max=10), template("b", ready=5, max=10))
    async with world.daemon(*templates, most=6) as front:
        await anyio.sleep(60)
        assert len(await front.box_ids()) <= 6


async def test_a_cold_lease_gets_room_from_stock_nobody_waits_for(world: World) -> None:
    async with world.daemon(template(ready=2, max=2)) as front:
        await front.full()
        lease = await front.lease(resources=Resources(memory_mb=64), wait_timeout_s=30)
        assert lease.state is LeaseState.LEASED


async def test_a_closing_desk_answers_everybody_shutting_down(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        await front.lease()
        codes: list[ErrorCode] = []

        async def one() -> None:
            try:
                await front.lease(wait_timeout_s=1000)
            except SandboxdError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await anyio.sleep(1)
            front.rooms.desk.granting.close()
            tasks.start_soon(one)
        assert codes == [ErrorCode.SHUTTING_DOWN] * 2


async def test_an_unknown_template_is_refused_with_those_that_exist(front: Front) -> None:
    with pytest.raises(SandboxdError) as caught:
        resolve(LeaseWish(template="pyhton"), front.templates)
    assert caught.value.details["templates"] == ["python"]
