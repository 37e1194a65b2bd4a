"""Events are kept in order and within bounds, and whoever comes back misses nothing unsaid."""

from __future__ import annotations

import time
from contextlib import ExitStack

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.telemetry import events as module
from sandboxd.telemetry.events import KEPT_S, Event, Events, EventType, Follower
from sandboxd.wire.codes import ErrorCode

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        """Unix seconds."""
        return self.at


@pytest.fixture
def clock() -> HandClock:
    """A clock that stands still."""
    return HandClock()


@pytest.fixture
def events(clock: HandClock) -> Events:
    """Nothing has happened yet."""
    return Events(clock, epoch="aa")


def tell(events: Events, count: int = 1, *, owner: str = "me", run_id: str | None = None) -> None:
    for _ in range(count):
        events.tell(EventType.LEASE_QUEUED, owner=owner, run_id=run_id)


async def heard(follower: Follower) -> list[Event]:
    found: list[Event] = []
    with anyio.move_on_after(0.01):
        while True:
            found += await follower.batch()
    return found


async def numbers(follower: Follower) -> list[int]:
    return [event.number for event in await heard(follower)]


async def test_a_new_follower_hears_what_happens_from_now_on(events: Events) -> None:
    tell(events, 3)
    with events.follow(owner="me") as follower:
        assert await numbers(follower) == []
        tell(events, 2)
        assert await numbers(follower) == [4, 5]


async def test_one_who_waits_is_woken(events: Events) -> None:
    with events.follow(owner="me") as follower:

        async def tell_later() -> None:
            await anyio.sleep(100)
            tell(events)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_later)
            with anyio.fail_after(101):
                assert len(await follower.batch()) == 1


async def test_one_who_comes_back_hears_what_it_missed_and_then_goes_on(events: Events) -> None:
    tell(events, 5)
    with events.follow(owner="me", after="aa-2") as follower:
        tell(events, 2)
        assert await numbers(follower) == [3, 4, 5, 6, 7]
        tell(events)
        assert await numbers(follower) == [8]


async def test_one_who_saw_the_last_event_missed_nothing(events: Events) -> None:
    tell(events, 5)
    with events.follow(owner="me", after="aa-5") as follower:
        assert await numbers(follower) == []


@pytest.mark.parametrize(
    "strange", ["bb-2", "aa-6", "aa-x", "aa-", "", "-", "aa--1", "aa-²", "9" * 60]
)
async def test_a_place_that_is_not_known_is_a_gap_and_then_all_that_is_kept(
    events: Events, strange: str
) -> None:
    tell(events, 5)
    with events.follow(owner="me", after=strange) as follower:
        gap, *rest = await heard(follower)
    assert (gap.type, gap.facts) == (EventType.GAP, {"after": strange})
    assert [event.number for event in rest] == [1, 2, 3, 4, 5]


async def test_what_is_older_than_an_hour_is_a_gap(events: Events, clock: HandClock) -> None:
    tell(events, 3)
    clock.at += KEPT_S + 1
    tell(events, 2)
    with events.follow(owner="me", after="aa-1") as follower:
        gap, *rest = await heard(follower)
    assert (gap.type, gap.id) == (EventType.GAP, "aa-3")
    assert [event.number for event in rest] == [4, 5]
    with events.follow(owner="me", after=gap.id) as follower:
        assert await numbers(follower) == [4, 5]


async def test_a_slow_follower_misses_nothing_that_is_kept(events: Events) -> None:
    with events.follow(owner="me", run_id="r") as follower:
        tell(events, 10, run_id="r")
        assert len(await follower.batch()) == 10
        for _ in range(3000):
            tell(events, run_id="r")
            tell(events, run_id="other")
        found = await heard(follower)
        assert len(found) == 3000
        assert [event.number for event in found] == list(range(11, 6011, 2))
        tell(events, run_id="r")
        assert len(await heard(follower)) == 1


async def test_one_who_falls_behind_what_is_kept_is_told_so(
    events: Events, monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    with events.follow(owner="me") as follower:
        tell(events, 10)
        assert len(await heard(follower)) == 10
        tell(events, 1000)
        clock.at += KEPT_S + 1
        tell(events, 3000)
        gap, *rest = await heard(follower)
    assert (gap.type, gap.facts["after"], gap.id) == (EventType.GAP, "aa-10", "aa-1010")
    assert [event.number for event in rest] == list(range(1011, 4011))


async def test_a_quiet_follower_keeps_a_place_that_is_still_known(
    events: Events, clock: HandClock
) -> None:
    with events.follow(owner="me", run_id="quiet") as follower:
        for _ in range(5):
            tell(events, 100)
            clock.at += KEPT_S / 2
            assert await heard(follower) == []
        place = follower.place
    with events.follow(owner="me", run_id="quiet", after=place) as follower:
        assert await heard(follower) == []


async def test_a_wait_that_is_cut_loses_nothing(events: Events) -> None:
    with events.follow(owner="me") as follower:
        for number in range(1, 50):
            with anyio.move_on_after(0.001):
                await follower.batch()
            tell(events)
            assert await numbers(follower) == [number]


async def test_followers_are_bounded(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FOLLOWERS", 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(events.follow(owner="me"))
        with pytest.raises(SandboxdError) as caught:
            stack.enter_context(events.follow(owner="me"))
        assert caught.value.code is ErrorCode.CAPACITY
    with events.follow(owner="me"):
        pass
    assert events._channels == {}


@pytest.mark.serial
async def test_telling_costs_microseconds_whoever_follows(events: Events) -> None:
    with ExitStack() as stack:
        for number in range(500):
            run_id = f"r{number}" if number % 2 else None
            stack.enter_context(events.follow(owner="me", run_id=run_id))
        began = time.perf_counter()
        tell(events, 20_000, run_id="r1")
        each_s = (time.perf_counter() - began) / 20_000
    assert each_s < 100e-6, "3.6 to 5 microseconds where it was measured"
