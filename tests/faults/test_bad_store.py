"""A state directory that is full or slow: no new lease, but release, reaping and use go on."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.faults.conftest import BadWorld
from tests.faults.quiet import agree, calm
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


@pytest.mark.parametrize("ready", [0, 2])
@pytest.mark.parametrize("wait", [True, False])
async def test_a_full_store_refuses_leases_and_lets_everything_else_go_on(
    world: BadWorld, ready: int, wait: bool
) -> None:
    async with world.daemon(template(ready=ready, max=6)) as front:
        await front.full()
        released, reaped, used = [await front.lease(timeout_s=60) for _ in range(3)]
        world.bad_store.full = True
        for _ in range(5):
            with pytest.raises(SandboxdError) as caught:
                await front.lease(idempotency_key="k", wait=wait)
            error = caught.value
            assert (error.code, error.fault) == (ErrorCode.DISK_FULL, Fault.INFRA)
            assert error.mask
            assert error.retry_safe
        done = await front.rooms.desk.release(released.id, owner=OWNER, wait_s=30)
        assert done.state is LeaseState.ENDED
        assert (await front.run(used, "true")).exit_code == 0
        await anyio.sleep(65)
        end = front.now(reaped).end
        assert end is not None
        assert end.reason is EndReason.EXPIRED
        await calm(front)
        assert len(await front.box_ids()) == ready
        world.bad_store.full = False
        lease = await front.lease(idempotency_key="k")  # under the key that was refused
        assert lease.state is LeaseState.LEASED
    async with world.daemon(template(ready=ready, max=6)) as front:
        assert front.now(lease).state is LeaseState.LEASED
        await calm(front)
        await agree(front)


async def test_a_store_that_is_slower_than_the_guest_s_grace_still_ends_leases_as_expired(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        world.bad_store.slow_s = 25.0
        lease = await front.lease(timeout_s=30)
        world.bad_store.slow_s = 0.0
        await anyio.sleep(30)
        end = front.now(lease).end
        assert end is not None
        assert end.reason is EndReason.EXPIRED


async def test_nobody_hears_of_a_lease_before_it_is_on_disk(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        world.bad_store.slow_s = 2.0
        queued = await front.lease(wait=False, idempotency_key="k")
        tenancy = front.tenancy(queued)
        while tenancy.lease.state is not LeaseState.LEASED:  # noqa: ASYNC110 - as the book has it
            await anyio.sleep(0.1)
        shown = front.now(queued)
        assert (shown.state, shown.leased_at) == (LeaseState.MAKING, None)
        with pytest.raises(SandboxdError) as caught:
            await front.run(queued, "true")
        assert caught.value.code is ErrorCode.CONFLICT
        await tenancy.settled.wait()
        (row,) = await front.store.load()
        assert row.state is LeaseState.LEASED
        assert front.now(queued).state is LeaseState.LEASED


async def test_an_end_is_never_overwritten_by_a_write_from_before_it(world: BadWorld) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        lease = await front.lease(timeout_s=10, grading_s=50)
        front.backend.inner.faults.slow(3.0)  # type: ignore[attr-defined]
        world.sabotage.script["dispose"].append(Mishap.HANG)
        await anyio.sleep(10.5)
        assert front.now(lease).phase is Phase.GRADING
        await front.rooms.desk.release(lease.id, owner=OWNER)
        await anyio.sleep(20)  # the grading phase has told the guest, and wrote what it knew
        rows = {row.id: row for row in await front.store.load()}
        assert rows[lease.id].state is LeaseState.ENDING


async def test_a_box_that_dies_while_its_lease_is_written_is_never_told_as_leased(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        world.bad_store.slow_s = 2.0
        (box_id,) = await front.box_ids()
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                with pytest.raises(SandboxdError) as caught:
                    await front.lease()
                assert caught.value.code is ErrorCode.SANDBOX_LOST
                assert caught.value.mask

            tasks.start_soon(one)
            await anyio.sleep(1)
            world.sabotage.inner.die(box_id)
        await calm(front)
        await agree(front)


async def test_renewing_while_a_long_call_ends_does_not_turn_the_idle_clock_back(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        lease = await front.lease(idle_timeout_s=20, timeout_s=500)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.run, lease, "sleep", "100")
            await anyio.sleep(99)
            front.backend.inner.faults.slow(2.0)  # type: ignore[attr-defined]
            await front.rooms.desk.renew(lease.id, timeout_s=300, owner=OWNER)
            front.backend.inner.faults.slow(0.0)  # type: ignore[attr-defined]
        idle_at = front.tenancy(lease).idle_at
        assert idle_at is not None
        assert idle_at - anyio.current_time() > 15
