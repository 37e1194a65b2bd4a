"""Which kills for want of memory belong to a box's end."""

from __future__ import annotations

from sandboxd.backends.parts.oom_counts import OomCount


def test_what_was_never_seen_is_of_the_end() -> None:
    assert OomCount().before(end=100) == 0


def test_a_kill_that_the_box_outlived_is_none_of_its_end() -> None:
    count = OomCount()
    count.note(1, at=10)
    assert count.before(end=60) == 1


def test_a_kill_seen_just_before_the_end_is_of_it() -> None:
    count = OomCount()
    count.note(1, at=10)
    count.note(2, at=59)
    count.note(2, at=59.5)
    assert count.before(end=60) == 1


def test_kills_in_quick_succession_all_are_of_the_end_that_follows() -> None:
    count = OomCount()
    for number in range(1, 6):
        count.note(number, at=50 + number)
    assert count.before(end=56) == 0
    assert count.before(end=70) == 5
