"""Leases end on time: hard life, idle clock, grading; renewing moves the hard end alone."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.wire.codes import EndReason, ErrorCode, Outcome
from tests.support.front import OWNER, Front

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


def reason(front: Front, lease: object) -> EndReason | None:
    end = front.now(lease).end  # type: ignore[arg-type]
    return None if end is None else end.reason


async def test_a_lease_ends_at_its_hard_end_even_in_use(front: Front) -> None:
    lease = await front.lease(timeout_s=30)
    with pytest.raises(SandboxdError) as caught:
        await front.run(lease, "sleep", "100")
    assert caught.value.code is ErrorCode.LEASE_ENDED
    assert caught.value.mask
    assert reason(front, lease) is EndReason.EXPIRED
    end = front.now(lease).end
    assert end is not None
    assert end.at - (front.now(lease).leased_at or 0) == pytest.approx(30, abs=0.1)


async def test_an_unused_lease_ends_idle(front: Front) -> None:
    lease = await front.lease(idle_timeout_s=10)
    await anyio.sleep(9)
    assert reason(front, lease) is None
    await anyio.sleep(2)
    assert reason(front, lease) is EndReason.IDLE


async def test_a_call_in_flight_stops_the_idle_clock(front: Front) -> None:
    lease = await front.lease(idle_timeout_s=10)
    assert (await front.run(lease, "sleep", "40")).exit_code == 0
    assert reason(front, lease) is None
    await anyio.sleep(25)
    assert reason(front, lease) is EndReason.IDLE


async def test_a_command_that_nobody_waits_for_stops_the_idle_clock(front: Front) -> None:
    lease = await front.lease(idle_timeout_s=10)
    record = await front.start(lease, "sleep", "40")
    await anyio.sleep(35)
    assert reason(front, lease) is None
    await anyio.sleep(6)
    seen = await front.rooms.commands.look(lease.id, record.exec_id, owner=OWNER)
    assert seen.outcome is Outcome.EXITED
    await anyio.sleep(15)
    assert reason(front, lease) is EndReason.IDLE


async def test_looking_is_no_use(front: Front) -> None:
    lease = await front.lease(idle_timeout_s=10)
    for _ in range(12):
        await anyio.sleep(1)
        front.now(lease)
        if reason(front, lease) is None:
            await front.rooms.commands.list(lease.id, owner=OWNER)
    assert reason(front, lease) is EndReason.IDLE


async def test_idle_timeout_zero_switches_the_idle_clock_off(front: Front) -> None:
    lease = await front.lease(idle_timeout_s=0, timeout_s=5000)
    await anyio.sleep(4000)
    assert reason(front, lease) is None


async def test_renew_moves_the_hard_end_and_is_no_use(front: Front) -> None:
    lease = await front.lease(timeout_s=30, idle_timeout_s=50)
    await anyio.sleep(20)
    renewed = await front.rooms.desk.renew(lease.id, timeout_s=100, owner=OWNER)
    assert (renewed.expires_at or 0) - front.clock.now() == pytest.approx(100)
    await anyio.sleep(25)
    assert reason(front, lease) is None
    await anyio.sleep(10)
    assert reason(front, lease) is EndReason.IDLE


async def test_renewing_over_the_template_s_maximum_is_refused(front: Front) -> None:
    lease = await front.lease()
    with pytest.raises(SandboxdError) as caught:
        await front.rooms.desk.renew(lease.id, timeout_s=1e6, owner=OWNER)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    most = await front.rooms.desk.renew(lease.id, timeout_s=-1, owner=OWNER)
    assert (most.expires_at or 0) - front.clock.now() == pytest.approx(86400)


async def test_grading_keeps_the_sandbox_for_the_scorer(front: Front) -> None:
    lease = await front.lease(timeout_s=30, grading_s=60, idle_timeout_s=20)
    record = await front.start(lease, "sleep", "1000")
    await anyio.sleep(31)
    assert front.now(lease).phase is Phase.GRADING
    seen = await front.rooms.commands.look(lease.id, record.exec_id, owner=OWNER)
    assert seen.outcome is Outcome.KILLED
    await anyio.sleep(50)  # the idle clock stands still
    assert (await front.run(lease, "echo", "score")).stdout.head == b"score\n"
    await anyio.sleep(10)
    assert reason(front, lease) is EndReason.EXPIRED


async def test_ended_leases_answer_for_an_hour_and_are_then_forgotten(front: Front) -> None:
    lease = await front.lease()
    await front.rooms.desk.release(lease.id, owner=OWNER)
    await anyio.sleep(3500)
    assert front.now(lease).state is LeaseState.ENDED
    with pytest.raises(SandboxdError) as caught:
        await front.run(lease, "true")
    assert caught.value.details["end"]["reason"] == "released"
    await anyio.sleep(300)
    with pytest.raises(SandboxdError) as caught:
        front.now(lease)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert await front.store.load() == []


async def test_a_guest_ends_itself_when_no_daemon_comes_back(front: Front) -> None:
    lease = await front.lease(timeout_s=30)
    assert lease.box is not None
    front.rooms.desk.find(lease.id, owner=OWNER).hard_at = float("inf")  # a daemon that forgot
    await anyio.sleep(100)
    assert await front.backend.look(lease.box) is not None
