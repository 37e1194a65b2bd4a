"""Boxes are spread over processors, as many as their share, and never more than there are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.parts.cpus import UNBOUND, Cpus, parse_list, write_list


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.1, 1), (0.5, 1), (1.0, 1), (1.01, 2), (2.0, 2), (3.5, 4)]
)
def test_a_share_is_rounded_up_to_whole_processors(share: float, wanted: int) -> None:
    assert len(Cpus(range(8)).take("a", share)) == wanted


@pytest.mark.parametrize("share", [2.0, 1.5, 64.0])
def test_a_share_of_all_there_is_binds_nothing(share: float) -> None:
    assert Cpus({0, 1}).take("a", share) == UNBOUND


def test_where_nothing_may_be_bound_nothing_is() -> None:
    assert Cpus(()).take("a", 1.0) == UNBOUND
    assert Cpus({3}).take("a", 0.5) == UNBOUND


def test_only_processors_that_boxes_may_run_on_are_chosen() -> None:
    cpus = Cpus({2, 5, 7})
    assert {cpus.take(name, 1.0) for name in "abc"} == {(2,), (5,), (7,)}


def test_what_is_gone_makes_room_and_what_was_adopted_takes_it() -> None:
    cpus = Cpus(range(3))
    cpus.note("old", (0,))
    assert cpus.take("a", 1.0) == (1,)
    assert cpus.take("b", 1.0) == (2,)
    cpus.drop("a")
    cpus.drop("a")
    assert cpus.take("c", 1.0) == (1,)


def test_a_box_keeps_what_it_has() -> None:
    cpus = Cpus(range(4))
    first = cpus.take("a", 1.0)
    assert cpus.take("a", 1.0) == first
    cpus.note("a", (3,))
    assert cpus.take("a", 1.0) == first
    assert cpus.take("b", 1.0) != first


def test_an_adopted_box_may_run_where_nobody_else_does() -> None:
    cpus = Cpus({0, 1})
    cpus.note("old", (0, 1, 9))
    cpus.drop("old")
    assert cpus.take("a", 1.0) == (0,)


@given(st.integers(2, 16), st.lists(st.floats(0.01, 3), max_size=40))
def test_no_processor_has_two_boxes_of_one_core_more_than_another(
    count: int, shares: list[float]
) -> None:
    cpus, load = Cpus(range(count)), Counter[int]()
    for number, share in enumerate(shares):
        chosen = cpus.take(str(number), share)
        assert len(chosen) < count
        load.update(chosen)
        loads = [load[number] for number in range(count)]
        assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0\n", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("", ()),
        ("x", ()),
        ("1-x", ()),
        ("-1", ()),
    ],
)
def test_lists_are_read_as_the_kernel_writes_them(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_list(text) == numbers
    assert parse_list(write_list(numbers)) == numbers
