"""A run's leases live as long as its trainer is heard of, across daemons too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.leases.runs import roll
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.model.run import Run, RunState, RunStatus
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.faults.conftest import BadWorld, open_bad_world
from tests.support.front import OWNER, Front, World, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def beat(front: Front, run_id: str = "r", *, ttl_s: float = 30, owner: str = OWNER) -> Any:
    status, _ = await front.rooms.runs.beat(run_id, ttl_s=ttl_s, owner=owner)
    return status


def run(front: Front, run_id: str = "r") -> RunStatus:
    return front.rooms.runs.find(run_id, owner=OWNER)


def reason(front: Front, lease: Any) -> EndReason | None:
    end = front.now(lease).end
    return None if end is None else end.reason


async def delete(front: Front, run_id: str = "r") -> list[str]:
    leases = front.rooms.runs.leases_of(run_id, owner=OWNER)
    released, failed = await front.rooms.desk.release_all(leases, owner=OWNER)
    assert failed == []
    await front.rooms.runs.forget(run_id, owner=OWNER)
    return released


async def test_a_run_that_is_heard_of_keeps_its_leases(front: Front) -> None:
    await beat(front)
    lease = await front.lease(run_id="r")
    for _ in range(10):
        await anyio.sleep(25)
        await beat(front)
    assert reason(front, lease) is None
    assert run(front).leased == 1


async def test_a_run_not_heard_of_for_its_ttl_is_lost_and_its_leases_end(front: Front) -> None:
    await beat(front)
    lease, other = await front.lease(run_id="r"), await front.lease()
    await anyio.sleep(29.9)
    assert reason(front, lease) is None
    await anyio.sleep(0.2)
    end = front.now(lease).end
    assert end is not None
    assert (end.reason, end.code, end.fault, end.mask) == (
        EndReason.RUN_LOST, ErrorCode.LEASE_ENDED, Fault.CLIENT, True,
    )  # fmt: skip
    assert reason(front, other) is None
    status = run(front)
    assert (status.run.state, status.leased, status.queued) == (RunState.LOST, 0, 0)
    assert status.ended == {EndReason.RUN_LOST: 1}
    assert status.expires_at == status.run.lost_at


async def test_beats_and_leases_of_a_lost_run_are_refused_until_it_is_deleted(front: Front) -> None:
    await beat(front)
    await anyio.sleep(31)
    for attempt in (beat(front), front.lease(run_id="r")):
        with pytest.raises(SandboxdError) as caught:
            await attempt
        assert caught.value.code is ErrorCode.CONFLICT
        assert "DELETE /v1/runs/r" in caught.value.detail
    await delete(front)
    assert (await beat(front)).run.state is RunState.ACTIVE
    assert (await front.lease(run_id="r")).state is LeaseState.LEASED


async def test_leases_of_a_run_that_never_beat_have_only_their_own_clocks(front: Front) -> None:
    lease = await front.lease(run_id="r", timeout_s=5000, idle_timeout_s=0)
    await anyio.sleep(4000)
    assert reason(front, lease) is None
    with pytest.raises(SandboxdError) as caught:
        run(front)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert await delete(front) == [lease.id]
    assert await delete(front) == []


async def test_a_known_idempotency_key_still_answers_with_the_lost_run_s_lease(
    front: Front,
) -> None:
    await beat(front)
    lease = await front.lease(run_id="r", idempotency_key="k")
    await anyio.sleep(31)
    again = await front.lease(run_id="r", idempotency_key="k")
    assert again.id == lease.id
    assert again.end is not None
    assert again.end.reason is EndReason.RUN_LOST


async def test_a_lost_run_drops_what_waits(front: Front) -> None:
    await beat(front)
    held = [await front.lease(idle_timeout_s=0) for _ in range(4)]
    told = await front.lease(run_id="r", wait=False, wait_timeout_s=500)
    errors: list[SandboxdError] = []

    async def wait() -> None:
        with pytest.raises(SandboxdError) as caught:
            await front.lease(run_id="r", wait_timeout_s=500)
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.sleep(29)
        assert (run(front).queued, run(front).leased) == (2, 0)
    assert (errors[0].code, errors[0].mask) == (ErrorCode.LEASE_ENDED, True)
    assert reason(front, told) is EndReason.RUN_LOST
    assert front.rooms.house.pools["python"].status().queued == 0
    assert [reason(front, lease) for lease in held] == [None] * 4
    assert run(front).ended == {EndReason.RUN_LOST: 2}


async def test_a_lost_run_drops_a_group_that_waits_and_ends_one_that_is_leased(
    front: Front,
) -> None:
    await beat(front)
    leased = await front.group(3, run_id="r", idle_timeout_s=0)
    errors: list[SandboxdError] = []

    async def wait() -> None:
        with pytest.raises(SandboxdError) as caught:
            await front.group(3, run_id="r", wait_timeout_s=500)
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.sleep(29)
        assert (run(front).leased, run(front).queued) == (3, 3)
    assert [reason(front, lease) for lease in leased] == [EndReason.RUN_LOST] * 3
    assert (errors[0].code, errors[0].mask) == (ErrorCode.LEASE_ENDED, True)
    assert run(front).ended == {EndReason.RUN_LOST: 6}
    assert front.rooms.house.pools["python"].status().queued == 0


async def test_a_lost_run_does_not_end_grading(front: Front) -> None:
    await beat(front)
    graded = await front.lease(run_id="r", timeout_s=20, grading_s=100)
    await anyio.sleep(25)
    assert front.now(graded).phase is Phase.GRADING
    await anyio.sleep(10)
    assert run(front).run.state is RunState.LOST
    assert (await front.run(graded, "echo", "score")).stdout.head == b"score\n"
    await anyio.sleep(90)
    assert reason(front, graded) is EndReason.EXPIRED


async def test_deleting_a_run_ends_grading_too(front: Front) -> None:
    await beat(front)
    graded = await front.lease(run_id="r", timeout_s=20, grading_s=100)
    await anyio.sleep(35)
    assert await delete(front) == [graded.id]
    assert reason(front, graded) is EndReason.RELEASED


async def test_a_shorter_and_a_longer_ttl_count_from_their_beat(front: Front) -> None:
    await beat(front, ttl_s=100)
    await beat(front, ttl_s=5)
    await anyio.sleep(4)
    await beat(front, ttl_s=50)
    await anyio.sleep(49)
    assert run(front).run.state is RunState.ACTIVE
    assert run(front).run.ttl_s == 50
    await anyio.sleep(2)
    assert run(front).run.state is RunState.LOST


async def test_a_clock_that_is_set_back_lengthens_no_run(front: Front) -> None:
    await beat(front)
    front.clock.offset -= 86400
    await anyio.sleep(31)
    assert run(front).run.state is RunState.LOST


async def test_another_key_s_run_of_the_same_name_is_another_run(front: Front) -> None:
    await beat(front)
    await beat(front, ttl_s=500, owner="others")
    lease = await front.lease(run_id="r")
    await anyio.sleep(31)
    assert reason(front, lease) is EndReason.RUN_LOST
    other = front.rooms.runs.find("r", owner="others")
    assert (other.run.state, other.leased, other.ended) == (RunState.ACTIVE, 0, {})
    await delete(front)
    assert front.rooms.runs.find("r", owner="others").run.state is RunState.ACTIVE


async def test_after_a_start_each_known_run_has_one_whole_ttl(world: World) -> None:
    one = template(ready=2, max=4)
    async with world.daemon(one) as front:
        await front.full()
        await beat(front, "alive")
        await beat(front, "dead")
        alive, dead = await front.lease(run_id="alive"), await front.lease(run_id="dead")
        await anyio.sleep(20)
    await anyio.sleep(300)  # longer than either ttl: no fault of theirs
    async with world.daemon(one) as front:
        await anyio.sleep(25)
        await beat(front, "alive")
        assert reason(front, dead) is None
        await anyio.sleep(6)
        assert (reason(front, alive), reason(front, dead)) == (None, EndReason.RUN_LOST)


async def test_a_lost_run_stays_lost_across_a_start(world: World) -> None:
    async with world.daemon() as front:
        await beat(front)
        await anyio.sleep(31)
        lost_at = run(front).run.lost_at
    async with world.daemon() as front:
        assert (run(front).run.state, run(front).run.lost_at) == (RunState.LOST, lost_at)
        with pytest.raises(SandboxdError, match="lost"):
            await beat(front)
        await delete(front)
    async with world.daemon() as front:
        await beat(front)


async def test_leases_of_a_lost_run_that_a_crash_left_are_over_before_anyone_asks(
    world: World,
) -> None:
    one = template(ready=2, max=4)
    async with world.daemon(one) as front:
        await front.full()
        await beat(front)
        lease = await front.lease(run_id="r")
    (stored,) = await world.store.load_runs()
    await world.store.put_run(replace(stored, state=RunState.LOST, lost_at=1.0))
    async with world.daemon(one) as front:
        assert reason(front, lease) is EndReason.RUN_LOST


async def test_how_leases_ended_is_remembered_for_an_hour_across_a_start(world: World) -> None:
    one = template(ready=2, max=4)
    async with world.daemon(one) as front:
        await front.full()
        await beat(front)
        lease = await front.lease(run_id="r")
        await front.rooms.desk.release(lease.id, owner=OWNER, wait_s=30)
        assert run(front).ended == {EndReason.RELEASED: 1}
    async with world.daemon(one) as front:
        assert run(front).ended == {EndReason.RELEASED: 1}


async def test_heartbeats_write_only_what_changed(world: World) -> None:
    writes: list[object] = []
    store = world.store
    plain = store.put_run

    async def counted(run: Run) -> None:
        writes.append(run)
        await plain(run)

    store.put_run = counted  # type: ignore[method-assign]
    async with world.daemon() as front:
        for ttl_s in (30, 30, 30, 40, 40, 30):
            await beat(front, ttl_s=ttl_s)
            await anyio.sleep(1)
        assert len(writes) == 3
        await anyio.sleep(31)
        assert len(writes) == 4


async def test_a_daemon_that_did_not_listen_loses_nobody_for_it(front: Front) -> None:
    await beat(front)
    entry = front.rooms.runs._roll.get((OWNER, "r"))
    assert entry is not None
    now = anyio.current_time()
    front.rooms.runs.look(now + 500)  # stopped, suspended, or starved of processor time
    assert run(front).run.state is RunState.ACTIVE
    await anyio.sleep(31)
    assert run(front).run.state is RunState.LOST


async def test_runs_are_bounded_and_the_longest_lost_makes_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "MOST_RUNS", 3)
    async with world.daemon() as front:
        for name in ("a", "b", "c"):
            await beat(front, name, ttl_s=10 if name != "c" else 1000)
            await anyio.sleep(1)
        with pytest.raises(SandboxdError) as caught:
            await beat(front, "d")
        assert caught.value.code is ErrorCode.CAPACITY
        await anyio.sleep(20)
        await beat(front, "d", ttl_s=1000)
        found = {
            known.run_id
            for state in RunState
            for known in front.rooms.runs.select(owner=OWNER, state=state)
        }
        assert found == {"b", "c", "d"}
        assert {stored.run_id for stored in await world.store.load_runs()} == found


async def test_a_run_that_cannot_be_written_down_does_not_begin(bad_world: BadWorld) -> None:
    async with bad_world.daemon() as front:
        bad_world.bad_store.full = True
        with pytest.raises(SandboxdError) as caught:
            await beat(front)
        assert (caught.value.code, caught.value.fault) == (ErrorCode.DISK_FULL, Fault.INFRA)
        with pytest.raises(SandboxdError):
            run(front)
        bad_world.bad_store.full = False
        assert (await beat(front)).run.state is RunState.ACTIVE


async def test_two_first_heartbeats_at_once_are_one_run_on_disk(bad_world: BadWorld) -> None:
    bad_world.bad_store.slow_s = 1.0
    async with bad_world.daemon() as front, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(beat, front)
        await anyio.sleep(0.5)
        assert await bad_world.store.load_runs() == []
        await anyio.sleep(0.6)
        assert len(await bad_world.store.load_runs()) == 1
    async with bad_world.daemon() as front:
        assert run(front).run.state is RunState.ACTIVE


async def test_a_full_store_stops_no_heartbeat_and_no_loss_and_is_written_later(
    bad_world: BadWorld,
) -> None:
    async with bad_world.daemon() as front:
        await beat(front, ttl_s=30)
        bad_world.bad_store.full = True
        await beat(front, ttl_s=50)
        await anyio.sleep(45)
        assert run(front).run.state is RunState.ACTIVE
        await anyio.sleep(10)
        assert run(front).run.state is RunState.LOST
        await delete(front)
        await beat_refused(front)
        bad_world.bad_store.full = False
        await anyio.sleep(61)
        assert await bad_world.store.load_runs() == []


async def beat_refused(front: Front) -> None:
    with pytest.raises(SandboxdError) as caught:
        await beat(front)
    assert caught.value.code is ErrorCode.DISK_FULL


@pytest.fixture
async def bad_world() -> AsyncIterator[BadWorld]:
    """A world whose disk may be full."""
    async with open_bad_world() as opened:
        yield opened
