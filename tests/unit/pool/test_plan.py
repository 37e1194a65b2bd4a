"""The plan: how many boxes to start, case by case and for every state of a pool."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.pool.plan import Plan, PoolView, Want, plan

EMPTY = PoolView(
    target=0,
    most=100,
    starting=4,
    warm=0,
    making=0,
    making_own=0,
    leased=0,
    disposing=0,
    house_room=1000,
    house_spare=1000,
    refill=True,
    shared_most=1000,
)


def test_an_empty_pool_starts_as_many_as_may_start_at_once() -> None:
    assert plan(replace(EMPTY, target=10), []) == Plan(shared=4)


def test_what_is_in_the_making_counts_for_the_stock() -> None:
    assert plan(replace(EMPTY, target=3, making=2), []) == Plan(shared=1)


def test_those_who_wait_come_before_the_stock() -> None:
    view = replace(EMPTY, target=2, starting=2)
    assert plan(view, [Want.OWN, Want.STOCK, Want.STOCK]) == Plan(own=(0,), shared=1)


def test_a_box_made_for_one_caller_alone_is_no_stock() -> None:
    view = replace(EMPTY, target=1, making=1, making_own=1)
    assert plan(view, [Want.BEGUN]) == Plan(shared=1)


def test_resting_refill_still_serves_those_who_wait() -> None:
    view = replace(EMPTY, target=5, refill=False)
    assert plan(view, [Want.STOCK]) == Plan(shared=1)


def test_boxes_being_disposed_of_take_room() -> None:
    assert plan(replace(EMPTY, target=5, most=5, disposing=4), []) == Plan(shared=1)


def test_the_house_may_be_full() -> None:
    assert plan(replace(EMPTY, target=5, house_room=0), [Want.OWN]) == Plan()


def test_stock_is_not_filled_with_room_that_others_wait_for() -> None:
    assert plan(replace(EMPTY, target=5, house_spare=0), [Want.STOCK]) == Plan(shared=1)


counts = st.integers(0, 50)


@given(
    view=st.builds(
        PoolView,
        target=counts,
        most=counts,
        starting=st.integers(1, 20),
        warm=counts,
        making=counts,
        making_own=st.just(0),
        leased=counts,
        disposing=counts,
        house_room=st.integers(-5, 50),
        house_spare=st.integers(-5, 50),
        refill=st.booleans(),
        shared_most=counts,
    ),
    waiting=st.lists(st.sampled_from(Want), max_size=30),
)
def test_no_plan_breaks_a_bound(view: PoolView, waiting: list[Want]) -> None:
    made = plan(view, waiting)
    begun = len(made.own) + made.shared
    exists = view.warm + view.making + view.leased + view.disposing
    assert begun == 0 or exists + begun <= view.most
    assert begun == 0 or view.making + begun <= view.starting
    assert begun <= max(0, view.house_room)
    assert all(waiting[place] is Want.OWN for place in made.own)
    wanted = waiting.count(Want.STOCK) + (view.target if view.refill else 0)
    assert made.shared <= min(max(0, wanted), view.shared_most)
