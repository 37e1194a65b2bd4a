"""Groups: all or none, whatever befalls one of them, and no two that wait for each other."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.template import Resources
from sandboxd.wire.codes import EndReason, ErrorCode
from tests.faults.quiet import agree, calm
from tests.support.front import OWNER, Front, World, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def release(front: Front, leases: Iterable[Lease]) -> None:
    for lease in leases:
        await front.rooms.desk.release(lease.id, owner=OWNER)


async def settled(front: Front, leases: Iterable[Lease], *, within_s: float = 100) -> set[str]:
    with anyio.fail_after(within_s):
        for lease in leases:
            await front.tenancy(lease).settled.wait()
    return {front.now(lease).state for lease in leases}


async def nothing_stays(front: Front) -> None:
    """No box is held, no request waits, no row and no lease is left."""
    await calm(front)
    await agree(front)
    assert await front.store.load() == []
    assert len(front.rooms.desk.book) == 0


async def test_a_group_is_leased_all_at_once_warm_as_far_as_there_is_stock(front: Front) -> None:
    leases = await front.group(4, group_id="g")
    assert [lease.state for lease in leases] == [LeaseState.LEASED] * 4
    assert sorted(lease.warm for lease in leases) == [False, False, True, True]
    assert len({lease.box.box_id for lease in leases if lease.box}) == 4
    assert {lease.terms.group_id for lease in leases} == {"g"}
    await agree(front)


async def test_a_group_from_stock_waits_for_nothing(world: World) -> None:
    async with world.daemon(template(ready=4, max=4, queue=0)) as front:
        await front.full()
        began_at = anyio.current_time()
        leases = await front.group(4, wait_timeout_s=0)
        assert all(lease.warm for lease in leases)
        assert anyio.current_time() - began_at < 0.1


async def test_a_group_that_the_pool_can_never_have_is_refused_with_what_it_can(
    front: Front,
) -> None:
    with pytest.raises(SandboxdError) as caught:
        await front.group(5)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert caught.value.details == {"field": "count", "max": 4}
    await nothing_stays(front)


async def test_a_group_for_which_the_queue_has_no_room_takes_no_place(world: World) -> None:
    async with world.daemon(template(ready=0, max=4, queue=3)) as front:
        held = await front.group(3)
        waiting = [await front.lease(wait=False) for _ in range(3)]
        assert await settled(front, waiting[:1]) == {LeaseState.LEASED}
        with pytest.raises(SandboxdError) as caught:
            await front.group(2)
        assert caught.value.code is ErrorCode.CAPACITY
        assert caught.value.retry_after_s
        assert set(caught.value.details) == {"position", "expected_wait_s"}
        await release(front, held)
        assert await settled(front, waiting) == {LeaseState.LEASED}
        assert len(front.rooms.desk.book) == 6


async def test_if_one_cannot_be_made_the_rest_are_freed_and_the_caller_hears_why(
    world: World,
) -> None:
    async with world.daemon(template(ready=2, max=8)) as front:
        await front.full()
        world.backend.faults.fail_next_make(ErrorCode.START_FAILED, "no such thing")
        with pytest.raises(SandboxdError) as caught:
            await front.group(4)
        assert caught.value.code is ErrorCode.START_FAILED
        assert caught.value.detail == "no such thing"
        await nothing_stays(front)


async def test_a_group_not_served_in_time_gives_back_what_it_has_gathered(world: World) -> None:
    async with world.daemon(template(ready=2, max=4)) as front:
        await front.full()
        held = [await front.lease() for _ in range(2)]
        await front.full()
        began_at = anyio.current_time()
        with pytest.raises(SandboxdError) as caught:
            await front.group(3, wait_timeout_s=20)
        assert caught.value.code is ErrorCode.CAPACITY
        assert "no 3 sandboxes together" in caught.value.detail
        assert anyio.current_time() - began_at < 21
        await release(front, held)
        await calm(front)
        await agree(front)


async def test_a_box_that_was_no_good_is_replaced_before_anybody_hears(front: Front) -> None:
    for box in front.rooms.house.pools["python"].stock.warm():
        front.backend.vanish(box.box_id)
    leases = await front.group(3)
    assert [lease.state for lease in leases] == [LeaseState.LEASED] * 3
    for lease in leases:
        assert (await front.run(lease, "true")).exit_code == 0
    await agree(front)


async def test_a_store_that_is_full_leaves_nothing_of_a_group(front: Front) -> None:
    async def full(leases: Iterable[Lease]) -> None:
        raise SandboxdError(ErrorCode.DISK_FULL, "no room left")

    put_all, front.store.put_all = front.store.put_all, full  # type: ignore[method-assign]
    with pytest.raises(SandboxdError) as caught:
        await front.group(3)
    assert caught.value.code is ErrorCode.DISK_FULL
    front.store.put_all = put_all  # type: ignore[method-assign]
    await nothing_stays(front)
    assert len(await front.group(3)) == 3


async def test_a_caller_who_goes_away_leaves_nothing_of_a_group(world: World) -> None:
    async with world.daemon(template(ready=1, max=4)) as front:
        held = [await front.lease() for _ in range(2)]
        with anyio.move_on_after(5):
            await front.group(3, wait_timeout_s=900)
        await release(front, held)
        await calm(front)
        assert all(tenancy.lease.over for tenancy in front.rooms.desk.book)
        await agree(front)


async def test_the_place_of_a_group_that_was_named_is_kept_a_minute(world: World) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        held = [await front.lease() for _ in range(2)]
        with anyio.move_on_after(5):
            await front.group(3, group_id="g", wait_timeout_s=900)
        waiting = {t.lease.id for t in front.rooms.desk.book if not t.lease.over}
        await anyio.sleep(30)
        await release(front, held)
        leases = await front.group(3, group_id="g", wait_timeout_s=900)
        assert {lease.id for lease in leases} < waiting
        await release(front, leases)
        held = [await front.lease()]
        with anyio.move_on_after(5):
            await front.group(3, group_id="other", wait_timeout_s=900)
        await anyio.sleep(61)
        assert front.rooms.house.pools["python"].status().queued == 0


async def test_the_same_name_finds_the_same_group_ended_or_not(world: World) -> None:
    async with world.daemon(template(ready=0, max=4)) as front:
        first = await front.group(2, group_id="g", body_digest="a")
        again = await front.group(2, group_id="g", body_digest="a")
        assert [lease.id for lease in again] == [lease.id for lease in first]
        with pytest.raises(SandboxdError) as caught:
            await front.group(2, group_id="g", body_digest="b")
        assert caught.value.code is ErrorCode.CONFLICT
    async with world.daemon(template(ready=0, max=4)) as front:
        again = await front.group(2, group_id="g", body_digest="a")
        assert [lease.id for lease in again] == [lease.id for lease in first]
        await release(front, first)
        ended = await front.group(2, group_id="g", body_digest="a")
        assert {lease.end.reason for lease in ended if lease.end} == {EndReason.RELEASED}


async def test_two_who_ask_for_the_same_group_at_once_share_one(world: World) -> None:
    async with world.daemon(template(ready=0, max=4)) as front:
        groups: list[list[str]] = []

        async def one() -> None:
            groups.append([lease.id for lease in await front.group(3, group_id="g")])

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        assert groups[0] == groups[1] == groups[2]
        assert len(await front.box_ids()) == 3


async def test_none_of_a_group_is_told_as_leased_before_all_are(world: World) -> None:
    async with world.daemon(template(ready=0, max=2)) as front:
        world.backend.faults.hang_next_make()
        leases = await front.group(2, group_id="g", wait=False, wait_timeout_s=30)
        assert {lease.state for lease in leases} <= {LeaseState.QUEUED, LeaseState.MAKING}
        await anyio.sleep(10)
        states = {front.now(lease).state for lease in leases}
        assert states <= {LeaseState.QUEUED, LeaseState.MAKING}
        assert await settled(front, leases) == {LeaseState.ENDED}
        ends = [front.now(lease).end for lease in leases]
        assert {(end.reason, end.code) for end in ends if end} == {
            (EndReason.MAKE_FAILED, ErrorCode.CAPACITY)
        }


async def test_releasing_one_of_a_group_that_waits_withdraws_all_of_it(world: World) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        held = await front.lease()
        leases = await front.group(3, wait=False, wait_timeout_s=900)
        await release(front, leases[1:2])
        ends = [front.now(lease).end for lease in leases]
        assert {end.reason for end in ends if end} == {EndReason.RELEASED}
        await release(front, [held])
        await calm(front)
        assert await front.box_ids() == set()


async def test_one_that_dies_after_the_answer_is_its_own_affair(front: Front) -> None:
    leases = await front.group(3)
    assert leases[0].box is not None
    front.backend.die(leases[0].box.box_id)
    with anyio.fail_after(5):
        while not front.now(leases[0]).over:  # noqa: ASYNC110 - no event for it
            await anyio.sleep(0.01)
    assert [front.now(lease).state for lease in leases[1:]] == [LeaseState.LEASED] * 2


async def test_a_queued_group_ends_as_a_whole_across_a_restart(world: World) -> None:
    async with world.daemon(template(ready=0, max=2)) as front:
        held = await front.lease()
        leases = await front.group(2, group_id="g", wait=False, wait_timeout_s=900)
        await anyio.sleep(1)
    async with world.daemon(template(ready=0, max=2)) as front:
        found = front.rooms.desk.granting.groups.find("g", owner=OWNER)
        assert {t.lease.id for t in found} == {lease.id for lease in leases}
        ends = {t.lease.end.code for t in found if t.lease.end}
        assert ends == {ErrorCode.SHUTTING_DOWN}
        await release(front, [held])
        await calm(front)
        assert await front.box_ids() == set()


async def test_a_daemon_that_dies_while_a_group_is_gathered_leaves_none_of_it(
    world: World,
) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        held = [await front.lease() for _ in range(1)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: front.group(3, group_id="g", wait_timeout_s=900))
            await anyio.sleep(5)
            assert len(await front.box_ids()) == 3
            tasks.cancel_scope.cancel()
    async with world.daemon(template(ready=0, max=3)) as front:
        assert [t.lease.id for t in front.rooms.desk.book] == [lease.id for lease in held]
        await calm(front)
        assert len(await front.box_ids()) == 1


async def test_two_groups_that_each_could_hold_half_are_served_one_after_the_other(
    world: World,
) -> None:
    async with world.daemon(template(ready=0, max=4)) as front:
        held = [await front.lease() for _ in range(4)]
        groups = [await front.group(4, wait=False, wait_timeout_s=900) for _ in range(2)]
        await release(front, held)
        assert await settled(front, groups[0]) == {LeaseState.LEASED}
        assert {front.now(lease).state for lease in groups[1]} == {LeaseState.QUEUED}
        await release(front, groups[0])
        assert await settled(front, groups[1]) == {LeaseState.LEASED}


async def test_two_groups_of_two_pools_do_not_halve_the_room_of_the_house(world: World) -> None:
    templates = (template("a", ready=0, max=10), template("b", ready=0, max=10))
    async with world.daemon(*templates, most=4) as front:
        held = [await front.lease(template="a" if n % 2 else "b") for n in range(4)]
        a = await front.group(4, template="a", wait=False, wait_timeout_s=900)
        b = await front.group(4, template="b", wait=False, wait_timeout_s=900)
        for lease in held:
            await release(front, [lease])
            await anyio.sleep(1)
        assert await settled(front, a) == {LeaseState.LEASED}
        await release(front, a)
        assert await settled(front, b) == {LeaseState.LEASED}


async def test_a_group_that_waits_for_its_own_pool_holds_up_no_group_that_has_room(
    world: World,
) -> None:
    templates = (template("a", ready=0, max=4), template("b", ready=0, max=4))
    async with world.daemon(*templates, most=100) as front:
        held = await front.lease(template="a")
        a = await front.group(4, template="a", wait=False, wait_timeout_s=900)
        await anyio.sleep(1)
        for _ in range(2):
            b = await front.group(4, template="b", wait_timeout_s=10)
            await release(front, b)
        assert {front.now(lease).state for lease in a} <= {LeaseState.QUEUED, LeaseState.MAKING}
        await release(front, [held])
        assert await settled(front, a) == {LeaseState.LEASED}


async def test_a_group_is_not_starved_by_single_requests(world: World) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        served: list[str] = []

        async def singles(run_id: str) -> None:
            while True:
                lease = await front.lease(run_id=run_id, wait_timeout_s=900)
                served.append(run_id)
                await anyio.sleep(5)
                await release(front, [lease])

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(singles, f"run-{number}")
            await anyio.sleep(20)
            served.clear()
            await front.group(3, run_id="group", wait_timeout_s=900)
            assert len(served) <= 6 * 3 + 3  # three turns of every other run
            tasks.cancel_scope.cancel()


async def test_a_group_whose_pool_is_made_too_small_is_told_so(world: World) -> None:
    async with world.daemon(template(ready=0, max=4)) as front:
        await front.lease()
        group = await front.group(4, wait=False, wait_timeout_s=900)
        pool = front.rooms.house.pools["python"]
        pool.adjust(template(ready=0, max=3).pool, paused=False)
        assert await settled(front, group, within_s=1) == {LeaseState.ENDED}
        end = front.now(group[0]).end
        assert end is not None
        assert end.code is ErrorCode.CAPACITY


async def test_a_cold_group_gets_what_it_asked_for_although_stock_takes_the_room(
    world: World,
) -> None:
    async with world.daemon(template(ready=4, max=4)) as front:
        await front.full()
        leases = await front.group(3, resources=Resources(memory_mb=64), wait_timeout_s=60)
        assert [lease.warm for lease in leases] == [False] * 3
        pool = front.rooms.house.pools["python"]
        assert pool.stock.count(BoxState.LEASED) == 3
