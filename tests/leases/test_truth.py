"""What happens to a box is what its lease says: deaths, broken lines, crashes of the daemon."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.lease import Lease, LeaseState, Phase
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.support.front import OWNER, Front, World, open_world, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


def box_id(lease: Lease) -> str:
    assert lease.box is not None
    return lease.box.box_id


async def test_a_call_in_a_dying_sandbox_hears_sandbox_lost_with_the_evidence(
    front: Front,
) -> None:
    lease = await front.lease()
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(SandboxdError) as caught:
                await front.run(lease, "sleep", "1000")
            assert caught.value.code is ErrorCode.SANDBOX_LOST
            assert caught.value.fault is Fault.AGENT
            assert caught.value.mask is False
            assert caught.value.details["end"]["reason"] == "oom"

        tasks.start_soon(call)
        await anyio.sleep(1)
        front.backend.die(box_id(lease), EndReason.OOM)


async def test_a_death_without_evidence_is_unknown_and_masked(front: Front) -> None:
    lease = await front.lease()
    front.backend.vanish(box_id(lease))
    with pytest.raises(SandboxdError) as caught:
        await front.run(lease, "true")
    assert (caught.value.code, caught.value.fault, caught.value.mask) == (
        ErrorCode.SANDBOX_LOST,
        Fault.UNKNOWN,
        True,
    )
    assert front.now(lease).over


async def test_a_broken_line_is_mended_and_the_command_runs_once(front: Front) -> None:
    lease = await front.lease()
    results = []
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            results.append(
                await front.run(lease, "/bin/sh", "-c", "echo once >> n; sleep 5; cat n")
            )

        tasks.start_soon(call)
        await anyio.sleep(1)
        front.backend.drop_connections(box_id(lease))
    assert results[0].stdout.head == b"once\n"


async def test_releasing_again_or_twice_at_once_is_success(front: Front) -> None:
    lease = await front.lease()

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(lambda: front.rooms.desk.release(lease.id, owner=OWNER, wait_s=10))
    released = await front.rooms.desk.release(lease.id, owner=OWNER)
    assert released.end is not None
    assert released.end.reason is EndReason.RELEASED
    assert box_id(lease) not in await front.box_ids()


async def test_a_restart_keeps_leases_and_stock_and_makes_nothing_twice(world: World) -> None:
    pool = template(ready=2, max=10)
    async with world.daemon(pool) as front:
        await front.full()
        leases = [await front.lease() for _ in range(3)]
        running = await front.start(leases[0], "/bin/sh", "-c", "sleep 60; echo done")
        await front.full()
        before = await front.box_ids()
    async with world.daemon(pool) as front:
        assert await front.box_ids() == before
        assert front.rooms.house.pools["python"].status().ready == 2
        for lease in leases:
            assert front.now(lease).state is LeaseState.LEASED
            assert (await front.run(lease, "true")).exit_code == 0
        record = await front.rooms.commands.look(
            leases[0].id, running.exec_id, owner=OWNER, wait_s=100
        )
        assert record.stdout.head == b"done\n"


async def test_what_died_or_expired_while_no_daemon_ran_is_ended_at_start(world: World) -> None:
    pool = template(ready=0, max=10)
    async with world.daemon(pool) as front:
        dead = await front.lease()
        expired = await front.lease(timeout_s=50)
        alive = await front.lease()
    world.backend.vanish(box_id(dead))
    await anyio.sleep(55)
    async with world.daemon(pool) as front:
        await anyio.sleep(1)
        ends = [front.now(lease).end for lease in (dead, expired, alive)]
        assert ends[0] is not None
        assert (ends[0].reason, ends[0].fault, ends[0].mask) == (
            EndReason.DIED,
            Fault.UNKNOWN,
            True,
        )
        assert ends[1] is not None
        assert ends[1].reason is EndReason.EXPIRED
        assert ends[2] is None
        assert await front.box_ids() == {box_id(alive)}


async def test_a_used_box_is_never_stock_again_whatever_was_written(world: World) -> None:
    pool = template(ready=1, max=10)
    async with world.daemon(pool) as front:
        await front.full()
        lease = await front.lease()
    await world.store.forget([lease.id])  # killed between claim and record
    async with world.daemon(pool) as front:
        await front.full()
        await anyio.sleep(5)
        assert box_id(lease) not in await front.box_ids()
        assert box_id(await front.lease()) != box_id(lease)


async def test_a_release_that_was_cut_short_is_finished_at_start(world: World) -> None:
    pool = template(ready=0, max=10)
    async with world.daemon(pool) as front:
        lease = await front.lease()
        tenancy = front.tenancy(lease)
        front.rooms.desk.endings.end(tenancy, EndReason.RELEASED)
        await tenancy.recorded.wait()
    async with world.daemon(pool) as front:
        await anyio.sleep(5)
        assert front.now(lease).state is LeaseState.ENDED
        assert await front.box_ids() == set()


async def test_a_queued_request_is_told_of_the_restart(world: World) -> None:
    pool = template(ready=0, max=1)
    async with world.daemon(pool) as front:
        await front.lease()
        queued = await front.lease(wait=False)
    async with world.daemon(pool) as front:
        end = front.now(queued).end
        assert end is not None
        assert (end.reason, end.fault, end.mask) == (EndReason.MAKE_FAILED, Fault.INFRA, True)


async def test_a_clock_set_back_never_lengthens_a_lease(world: World) -> None:
    pool = template(ready=0)
    async with world.daemon(pool) as front:
        lease = await front.lease(timeout_s=100)
    world.clock.offset -= 86_000
    async with world.daemon(pool) as front:
        await anyio.sleep(115)  # the guest's own end, which runs on another clock
        assert front.now(lease).over


@pytest.mark.parametrize("shift_s", [-3600, 3600])
async def test_a_clock_that_was_set_while_no_daemon_ran_neither_lengthens_nor_ends_a_lease(
    world: World, shift_s: int
) -> None:
    pool = template(ready=0)
    async with world.daemon(pool) as front:
        lease = await front.lease(timeout_s=300, grading_s=50)
    world.clock.offset += shift_s
    await anyio.sleep(100)
    async with world.daemon(pool) as front:
        shown = front.now(lease)
        assert shown.end is None
        assert (shown.expires_at or 0) - front.clock.now() == pytest.approx(200, abs=1)
        await anyio.sleep(195)
        assert front.now(lease).phase is Phase.ROLLOUT
        await anyio.sleep(10)
        assert front.now(lease).phase is Phase.GRADING
        await anyio.sleep(50)
        end = front.now(lease).end
        assert end is not None
        assert end.reason is EndReason.EXPIRED


async def test_a_box_that_is_gone_after_its_hard_end_expired_and_one_before_it_died(
    world: World,
) -> None:
    pool = template(ready=0)
    async with world.daemon(pool) as front:
        short, long = await front.lease(timeout_s=50), await front.lease(timeout_s=500)
    for lease in (short, long):
        assert lease.box is not None
        await world.backend.dispose(lease.box)
    await anyio.sleep(60)
    async with world.daemon(pool) as front:
        ends = [front.now(lease).end for lease in (short, long)]
    assert [(end.reason, end.fault, end.mask) for end in ends if end is not None] == [
        (EndReason.EXPIRED, Fault.CLIENT, True),
        (EndReason.DIED, Fault.UNKNOWN, True),
    ]


async def test_stock_of_a_changed_template_is_replaced(world: World) -> None:
    async with world.daemon(template(ready=2)) as front:
        await front.full()
        old = await front.box_ids()
    async with world.daemon(template(ready=2, spec=BoxSpec(image="new"))) as front:
        await anyio.sleep(5)
        await front.full()
        assert not (await front.box_ids() & old)


async def test_templates_read_again_leave_leases_alone(front: Front) -> None:
    lease = await front.lease()
    await front.rooms.take({"other": template("other", ready=1)})
    await anyio.sleep(5)
    assert (await front.run(lease, "true")).exit_code == 0
    assert front.rooms.house.pools["python"].stock.count(BoxState.WARM) == 0
    assert front.rooms.house.pools["other"].stock.count(BoxState.WARM) == 1


async def test_clearing_ends_every_lease_and_removes_every_box(front: Front) -> None:
    leases = [await front.lease() for _ in range(2)]
    assert await front.rooms.clear() == 0
    assert await front.box_ids() == set()
    for lease in leases:
        end = front.now(lease).end
        assert end is not None
        assert end.reason is EndReason.SHUTDOWN


async def test_clearing_waits_for_what_an_earlier_daemon_left(world: World) -> None:
    async with world.daemon(template(ready=0)) as front:
        for number in range(20):
            order = BoxOrder(box_id=f"box-{number}", spec=BoxSpec(image="host"), labels={})
            front.rooms.disposer.dispose(order.box_id, await world.backend.make(order))
        assert await front.rooms.clear() == 0
        assert await front.box_ids() == set()


@pytest.mark.parametrize("orphan_limit_s", [3600.0, 20.0])
async def test_a_box_without_news_gets_a_word_before_its_orphan_limit(
    orphan_limit_s: float,
) -> None:
    async with (
        open_world(orphan_limit_s=orphan_limit_s) as world,
        world.daemon(template(ready=1)) as front,
    ):
        await front.full()
        before = await front.box_ids()
        await anyio.sleep(3 * orphan_limit_s)
        assert await front.box_ids() == before


async def test_a_box_that_no_book_knows_is_swept_within_a_minute(world: World) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        stock = await front.box_ids()
        await world.backend.make(
            BoxOrder(box_id="box-stray", spec=BoxSpec(image="host"), labels={})
        )
        await anyio.sleep(65)
        assert await front.box_ids() == stock
