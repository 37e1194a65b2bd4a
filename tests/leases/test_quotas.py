"""What a key may hold and how fast it may lease: counted exactly, told, and never for others."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.leases.terms import LeaseWish, resolve
from sandboxd.model.lease import Lease
from sandboxd.model.quota import Quota
from sandboxd.model.template import Resources
from sandboxd.wire.codes import ErrorCode
from tests.support.front import OWNER, Front, World, template

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.virtual_time,
    pytest.mark.requirement("SE-07"),
]


def bound(front: Front, **quota: Any) -> None:
    front.rooms.quotas.change({OWNER: Quota(**quota)})


async def lease_of(front: Front, owner: str) -> Lease:
    order = resolve(LeaseWish(template="python"), front.templates)
    lease, _ = await front.rooms.desk.granting.lease(order, owner=owner)
    return lease


async def refused(front: Front, **wish: Any) -> SandboxdError:
    with pytest.raises(SandboxdError) as caught:
        await front.lease(**wish)
    assert caught.value.code is ErrorCode.QUOTA_EXCEEDED
    assert caught.value.status == 429
    return caught.value


async def test_a_key_leases_up_to_its_number_and_again_once_a_box_is_gone(front: Front) -> None:
    bound(front, leases=2)
    first = await front.lease()
    await front.lease()
    error = await refused(front)
    assert error.details == {
        "quota": "leases",
        "limit": 2,
        "used": 2,
        "asked": 1,
        "waiting_helps": True,
    }
    await front.rooms.desk.release(first.id, owner=OWNER, wait_s=10)
    await front.lease()


async def test_what_ended_counts_until_its_box_is_gone(front: Front) -> None:
    bound(front, leases=1)
    lease = await front.lease()
    await front.rooms.desk.release(lease.id, owner=OWNER)
    tenancy = front.tenancy(lease)
    if not tenancy.gone.is_set():
        assert (await refused(front)).details["used"] == 1
    await tenancy.gone.wait()
    assert front.rooms.quotas.held(OWNER).leases == 0
    await front.lease()


async def test_what_waits_counts(world: World) -> None:
    async with world.daemon(template(ready=0, max=1)) as front:
        bound(front, leases=2)
        await front.lease()
        waiting = await front.lease(wait=False)
        assert (await refused(front, wait=False)).details["used"] == 2
        await front.rooms.desk.release(waiting.id, owner=OWNER)
        await front.lease(wait=False)


async def test_cores_and_memory_are_added_up(front: Front) -> None:
    bound(front, cpu=1.5, memory_mb=1024)
    await front.lease(resources=Resources(cpu=1.0, memory_mb=256))
    error = await refused(front, resources=Resources(cpu=0.6, memory_mb=256))
    assert (error.details["quota"], error.details["used"]) == ("cpu", 1.0)
    error = await refused(front, resources=Resources(cpu=0.5, memory_mb=1024))
    assert (error.details["quota"], error.details["used"]) == ("memory_mb", 256)
    await front.lease(resources=Resources(cpu=0.5, memory_mb=768))


async def test_tenths_of_cores_add_up_to_a_whole(world: World) -> None:
    async with world.daemon(template(ready=0, max=20)) as front:
        bound(front, cpu=1.0)
        for _ in range(10):
            await front.lease(resources=Resources(cpu=0.1))
        assert front.rooms.quotas.held(OWNER).cpu == 1.0
        await refused(front, resources=Resources(cpu=0.1))


@pytest.mark.parametrize("quota", [{"leases": 0}, {"cpu": 0.5}, {"memory_mb": 100}])
async def test_a_request_over_the_quota_by_itself_is_told_that_waiting_is_in_vain(
    front: Front, quota: dict[str, Any]
) -> None:
    bound(front, **quota)
    error = await refused(front)
    assert "waiting will not help" in error.detail
    assert error.details["waiting_helps"] is False
    assert not error.retry_safe
    assert error.retry_after_s is None


async def test_a_rate_lets_a_burst_through_and_then_says_when_to_ask_again(world: World) -> None:
    async with world.daemon(template(ready=0, max=100)) as front:
        bound(front, creates_per_minute=6)
        for _ in range(6):
            await front.lease()
        error = await refused(front)
        assert error.details["quota"] == "creates_per_minute"
        assert error.retry_after_s == pytest.approx(10, abs=1)
        assert front.rooms.quotas.creates_left(OWNER) == 0
        assert error.retry_after_s is not None
        await anyio.sleep(error.retry_after_s)
        await front.lease()
        await refused(front)
        await anyio.sleep(600)
        assert front.rooms.quotas.creates_left(OWNER) == 6


async def test_what_is_asked_for_again_under_its_key_costs_nothing(front: Front) -> None:
    bound(front, leases=1, creates_per_minute=1)
    lease = await front.lease(idempotency_key="k", body_digest="b")
    assert (await front.lease(idempotency_key="k", body_digest="b")).id == lease.id


async def test_a_refused_request_takes_nothing_of_the_rate(front: Front) -> None:
    bound(front, leases=1, creates_per_minute=2)
    lease = await front.lease()
    await refused(front)
    await front.rooms.desk.release(lease.id, owner=OWNER, wait_s=10)
    await front.lease()


async def test_another_keys_use_is_no_matter(front: Front) -> None:
    bound(front, leases=1)
    await lease_of(front, "another")
    await lease_of(front, "another")
    await front.lease()
    await refused(front)
    assert front.rooms.quotas.held("another").leases == 2


async def test_a_group_is_counted_as_one_request(front: Front) -> None:
    bound(front, leases=4, creates_per_minute=100)
    order = resolve(LeaseWish(template="python"), front.templates)
    front.rooms.quotas.admit(order, owner=OWNER, count=4)
    with pytest.raises(SandboxdError, match="waiting will not help"):
        front.rooms.quotas.admit(order, owner=OWNER, count=5)


async def test_a_lower_quota_takes_nothing_away(front: Front) -> None:
    bound(front, leases=2)
    await front.lease()
    await front.lease()
    bound(front, leases=1)
    assert front.rooms.quotas.held(OWNER).leases == 2
    assert (await refused(front)).details == {
        "quota": "leases",
        "limit": 1,
        "used": 2,
        "asked": 1,
        "waiting_helps": True,
    }


async def test_leases_of_the_last_daemon_count_after_a_restart(world: World) -> None:
    async with world.daemon(template(ready=0, max=4)) as front:
        await front.lease()
    async with world.daemon(template(ready=0, max=4)) as front:
        bound(front, leases=1)
        assert (await refused(front)).details["used"] == 1
