"""What whoever follows hears of leases and runs: each thing once, in order, and no secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.telemetry.events import Event, EventType, Follower
from sandboxd.wire.codes import EndReason
from tests.support.front import OWNER, Front

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


@pytest.fixture
async def follower(front: Front) -> AsyncIterator[Follower]:
    """One who follows all that is the tests'."""
    with front.rooms.events.follow(owner=OWNER) as follower:
        yield follower


async def heard(follower: Follower) -> list[Event]:
    """What was told so far."""
    found: list[Event] = []
    with anyio.move_on_after(0.01):
        while True:
            found += await follower.batch()
    return found


def types(events: list[Event]) -> list[str]:
    return [str(event.type) for event in events]


async def test_a_lease_is_told_from_its_beginning_to_its_end(
    front: Front, follower: Follower
) -> None:
    lease = await front.lease(run_id="r", group_id="g", rollout_id="o", env={"A": "hidden"})
    await front.rooms.desk.release(lease.id, owner=OWNER)
    leased, ended = await heard(follower)
    assert (leased.type, leased.run_id) == (EventType.LEASE_LEASED, "r")
    assert leased.facts == {
        "sandbox_id": lease.id, "template": "python", "group_id": "g", "rollout_id": "o",
        "warm": True, "expires_at": lease.expires_at,
    }  # fmt: skip
    assert ended.type is EventType.LEASE_ENDED
    assert ended.facts["end"]["reason"] == EndReason.RELEASED
    assert "hidden" not in repr([leased.facts, ended.facts])


async def test_the_event_the_diary_and_the_record_of_an_end_agree(
    front: Front, follower: Follower
) -> None:
    lease = await front.lease(timeout_s=20, secrets={"TOKEN": "hidden"})
    await anyio.sleep(21)
    (ended,) = [event for event in await heard(follower) if event.type is EventType.LEASE_ENDED]
    end = front.now(lease).end
    assert end is not None
    assert ended.facts["end"] == {
        "reason": end.reason, "code": end.code, "fault": end.fault, "mask": end.mask,
        "detail": end.detail, "at": end.at,
    }  # fmt: skip
    (noted,) = [entry for entry in front.tenancy(lease).diary if entry["event"] == "ended"]
    assert (noted["reason"], noted["detail"]) == (end.reason, end.detail)
    assert noted["at"] == pytest.approx(end.at)
    assert ended.at == pytest.approx(end.at)


async def test_one_who_waits_is_told_as_queued_first(front: Front, follower: Follower) -> None:
    for _ in range(3):
        await front.lease()
    queued = [event for event in await heard(follower) if event.type is EventType.LEASE_QUEUED]
    assert len(queued) == 1


async def test_a_request_that_is_refused_at_once_was_no_lease(
    front: Front, follower: Follower
) -> None:
    front.rooms.desk.granting.close()
    with pytest.raises(SandboxdError):
        await front.lease()
    assert await heard(follower) == []


async def test_one_who_leaves_the_queue_is_told_as_ended(front: Front, follower: Follower) -> None:
    for _ in range(4):
        await front.lease(idle_timeout_s=0)
    with anyio.move_on_after(5):
        await front.lease(run_id="r", wait_timeout_s=500)
    told = [event for event in await heard(follower) if event.run_id == "r"]
    assert types(told) == ["lease.queued", "lease.ended"]


async def test_the_hard_end_is_warned_of_once_and_again_after_it_was_moved(
    front: Front, follower: Follower
) -> None:
    lease = await front.lease(timeout_s=100, idle_timeout_s=0)
    began = anyio.current_time()
    await anyio.sleep(89)
    assert types(await heard(follower)) == ["lease.leased"]
    await anyio.sleep(2)
    (warning,) = await heard(follower)
    assert warning.type is EventType.LEASE_EXPIRING
    assert warning.at - front.clock.offset - began == pytest.approx(90, abs=0.1)
    assert warning.facts["expires_at"] == front.now(lease).expires_at
    assert (warning.facts["reason"], warning.facts["phase"]) == ("expired", "rollout")
    await front.rooms.desk.renew(lease.id, timeout_s=3000, owner=OWNER)
    await anyio.sleep(2935)
    assert await heard(follower) == []
    await anyio.sleep(10)
    assert types(await heard(follower)) == ["lease.expiring"]
    await anyio.sleep(60)
    assert types(await heard(follower)) == ["lease.ended"]


async def test_grading_is_warned_of_as_a_phase_of_its_own(front: Front, follower: Follower) -> None:
    await front.lease(timeout_s=100, grading_s=50, idle_timeout_s=0)
    await anyio.sleep(200)
    warnings = [e for e in await heard(follower) if e.type is EventType.LEASE_EXPIRING]
    assert [(w.facts["phase"], w.facts["grading_s"]) for w in warnings] == [
        ("rollout", 50),
        ("grading", 0),
    ]
    assert warnings[1].at - warnings[0].at == pytest.approx(10 + 45, abs=0.5)


async def test_a_lost_run_is_told_before_what_it_takes_with_it(
    front: Front, follower: Follower
) -> None:
    await front.rooms.runs.beat("r", ttl_s=10, owner=OWNER)
    await front.lease(run_id="r")
    await anyio.sleep(11)
    lost, ended = (await heard(follower))[1:]
    assert (lost.type, lost.run_id) == (EventType.RUN_LOST, "r")
    assert lost.facts == {"ttl_s": 10, "leased": 1, "queued": 0}
    assert ended.facts["end"]["reason"] == EndReason.RUN_LOST


async def test_a_follower_hears_of_its_own_run_and_key_alone(front: Front) -> None:
    events = front.rooms.events

    def tell(**about: Any) -> None:
        events.tell(EventType.LEASE_QUEUED, **about)

    with (
        events.follow(owner="a", run_id="r") as one,
        events.follow(owner="a") as two,
        events.follow(owner=None) as every,
        events.follow(owner=None, run_id="r") as every_r,
    ):
        tell(owner="a", run_id="r")
        tell(owner="a", run_id="other")
        tell(owner="a")
        tell(owner="b", run_id="r")
        events.tell(EventType.POOL_FAULT, pool="python")
        first = events.count - 4

        async def numbers(follower: Follower) -> list[int]:
            return [event.number - first for event in await heard(follower)]

        assert await numbers(one) == [0]
        assert await numbers(two) == [0, 1, 2, 4]
        assert await numbers(every) == [0, 1, 2, 3, 4]
        assert await numbers(every_r) == [0, 3]


async def test_an_image_that_was_pulled_is_everybody_s(front: Front, follower: Follower) -> None:
    front.backend.faults.pull_s = 3
    assert front.backend.images is not None
    await front.backend.images.prefetch("slow")
    (pulled,) = await heard(follower)
    assert (pulled.type, pulled.owner) == (EventType.IMAGE_PULLED, None)
    assert pulled.facts == {"image": "slow"}
