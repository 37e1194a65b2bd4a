"""Leases are spread over processors, as many as their share, and what is over makes room."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.leases.slots import Slots
from sandboxd.model.claim import Affinity
from sandboxd.model.lease import Lease
from sandboxd.model.template import Resources
from tests.support.front import OWNER, Front, World, template


@pytest.mark.parametrize(
    ("share", "count"), [(0.1, 1), (0.5, 1), (1.0, 1), (1.01, 2), (2.0, 2), (3.5, 4)]
)
def test_a_share_is_rounded_up_to_whole_processors(share: float, count: int) -> None:
    assert Slots(8).take("a", share) == Affinity(count, 0)


@pytest.mark.parametrize("share", [1.5, 2.0, 64.0])
def test_a_share_of_all_there_is_binds_nothing(share: float) -> None:
    assert Slots(2).take("a", share) is None


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_where_there_is_nothing_to_choose_nothing_is_bound(count: int) -> None:
    slots = Slots(count)
    slots.note("old", Affinity(1, 3))  # of a daemon that bound
    assert slots.take("a", 0.5) is None
    slots.drop("old")


def test_what_is_over_makes_room_and_what_was_adopted_takes_it() -> None:
    slots = Slots(3)
    slots.note("old", Affinity(1, 0))
    assert slots.take("a", 1.0) == Affinity(1, 1)
    assert slots.take("b", 1.0) == Affinity(1, 2)
    slots.drop("a")
    slots.drop("a")
    assert slots.take("c", 1.0) == Affinity(1, 1)


def test_a_lease_keeps_what_it_has() -> None:
    slots = Slots(4)
    first = slots.take("a", 1.0)
    assert slots.take("a", 1.0) == first
    slots.note("a", Affinity(1, 3))
    assert slots.take("a", 1.0) == first
    assert slots.take("b", 1.0) != first


def test_slots_that_there_were_once_are_given_back_as_they_were_taken() -> None:
    slots = Slots(2)
    slots.note("old", Affinity(9, 11))
    slots.drop("old")
    assert slots.take("a", 1.0) == Affinity(1, 0)


def test_a_share_of_several_lies_side_by_side_and_round_where_the_fewest_are() -> None:
    slots = Slots(4)
    slots.note("old", Affinity(2, 1))
    assert slots.take("a", 2.0) == Affinity(2, 3)


@given(
    st.integers(2, 16),
    st.lists(st.tuples(st.integers(0, 20), st.floats(0.01, 3)), max_size=60),
)
def test_whoever_comes_is_where_the_fewest_are(count: int, visits: list[tuple[int, float]]) -> None:
    """Each visit of a name that is there already is its leaving."""
    slots, there = Slots(count), dict[str, Affinity | None]()

    def loads() -> Counter[int]:
        return Counter(
            (found.first + at) % count
            for found in there.values()
            if found is not None
            for at in range(found.count)
        )

    for number, share in visits:
        name = str(number)
        if name in there:
            slots.drop(name)
            del there[name]
            continue
        before = loads()
        taken = there[name] = slots.take(name, share)
        if taken is not None and taken.count == 1:
            assert before[taken.first] == min(before[slot] for slot in range(count))


@pytest.mark.anyio
@pytest.mark.virtual_time
class TestInTheRooms:
    """On the fake, whose guests take the field and bind nothing."""

    async def places(self, front: Front, *leases: Lease) -> list[int]:
        found = [front.now(lease).affinity for lease in leases]
        assert all(affinity is not None and affinity.count == 1 for affinity in found)
        return [affinity.first for affinity in found if affinity is not None]

    async def test_warm_stock_counts_for_nothing_and_a_release_makes_room(
        self, world: World
    ) -> None:
        async with world.daemon(template(ready=3, max=8), slots=3) as front:
            await front.full()
            first, second = await front.lease(), await front.lease()
            assert await self.places(front, first, second) == [0, 1]
            await front.rooms.desk.release(first.id, owner=OWNER, wait_s=10)
            assert await self.places(front, await front.lease(), await front.lease()) == [0, 2]

    async def test_a_group_is_spread(self, world: World) -> None:
        async with world.daemon(template(ready=1, max=8), slots=4) as front:
            leases = await front.group(4)
            assert sorted(await self.places(front, *leases)) == [0, 1, 2, 3]

    async def test_the_next_daemon_counts_those_that_it_finds(self, world: World) -> None:
        async with world.daemon(template(ready=0, max=4), slots=2) as front:
            held = await front.lease()
        async with world.daemon(template(ready=0, max=4), slots=2) as front:
            assert await self.places(front, held, await front.lease()) == [0, 1]

    async def test_a_request_that_came_to_nothing_holds_no_slot(self, world: World) -> None:
        async with world.daemon(template(ready=0, max=4), slots=2) as front:
            for _ in range(3):
                with pytest.raises(SandboxdError):
                    await front.lease(workdir="/etc/hostname/below-a-file")
            assert await self.places(front, await front.lease(), await front.lease()) == [0, 1]

    async def test_a_share_of_the_whole_machine_is_not_bound(self, world: World) -> None:
        async with world.daemon(template(ready=0, max=4), slots=2) as front:
            lease = await front.lease(resources=Resources(cpu=2.0))
            assert lease.affinity is None
