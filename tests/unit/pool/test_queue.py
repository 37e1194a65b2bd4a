"""The queue case by case: order, fairness between runs, units, and places that are kept."""

from __future__ import annotations

from sandboxd.model.template import BoxSpec
from sandboxd.pool.admission import Queue, Ticket, Unit

SPEC = BoxSpec(image="host")


def tickets(
    flow: str, count: int = 1, *, priority: int = 0, unit: Unit | None = None
) -> list[Ticket]:
    return [Ticket(SPEC, "f", priority, (flow,), unit) for _ in range(count)]


def joined(queue: Queue, flow: str, count: int = 1, *, priority: int = 0) -> list[Ticket]:
    """Requests of one run, one after the other."""
    found = tickets(flow, count, priority=priority)
    for ticket in found:
        queue.join(ticket)
    return found


def together(queue: Queue, flow: str, count: int) -> tuple[Unit, list[Ticket]]:
    unit = Unit(count)
    found = tickets(flow, count, unit=unit)
    queue.join(*found)
    return unit, found


def served(queue: Queue, count: int) -> list[str]:
    """The runs of the next so many."""
    found = [queue.pop("f") for _ in range(count)]
    return [ticket.flow[0] for ticket in found if ticket is not None]


def test_one_run_is_served_in_the_order_of_its_requests() -> None:
    queue = Queue(most=100)
    asked = joined(queue, "a", 20)
    assert [queue.pop("f") for _ in range(20)] == asked
    assert queue.pop("f") is None


def test_a_run_s_first_request_waits_for_one_turn_of_another_s_thousand() -> None:
    queue = Queue(most=2000)
    joined(queue, "big", 1000)
    assert served(queue, 10) == ["big"] * 10
    (late,) = joined(queue, "small")
    assert queue.position(late) == 1
    assert served(queue, 3) == ["big", "small", "big"]


def test_runs_take_turns_however_much_each_has_asked_for() -> None:
    queue = Queue(most=1000)
    joined(queue, "a", 50)
    joined(queue, "b", 5)
    joined(queue, "c", 50)
    assert served(queue, 15) == ["a", "b", "c"] * 5
    assert served(queue, 6) == ["a", "c"] * 3


def test_newcomers_without_end_overtake_nobody_for_ever() -> None:
    queue = Queue(most=1000)
    asked = joined(queue, "patient", 10)
    before = 0
    while asked[-1] in queue:
        joined(queue, f"new-{before}", 2)
        assert queue.pop("f") is not None
        before += 1
        assert before < 1000


def test_priority_goes_before_turns() -> None:
    queue = Queue(most=100)
    joined(queue, "a", 2)
    joined(queue, "b", 2, priority=5)
    joined(queue, "c", 1, priority=-5)
    assert served(queue, 5) == ["b", "b", "a", "a", "c"]


def test_who_leaves_the_line_gives_its_turn_back() -> None:
    queue = Queue(most=100)
    gone = joined(queue, "a", 10)
    joined(queue, "b", 3)
    for ticket in gone:
        queue.leave(ticket)
        queue.leave(ticket)
    joined(queue, "a")
    assert served(queue, 4) == ["b", "a", "b", "b"]


def test_a_ticket_that_comes_back_has_its_old_place() -> None:
    queue = Queue(most=100)
    joined(queue, "a", 3)
    joined(queue, "b", 3)
    first = queue.pop("f")
    assert first is not None
    joined(queue, "c", 1)
    again = first.again()
    queue.rejoin(again)
    assert queue.position(again) == 0
    queue.leave(first)  # the old one has no place to give up any more
    assert queue.pop("f") is again


def test_a_group_is_as_many_turns_as_it_has_sandboxes() -> None:
    queue = Queue(most=100)
    unit, _ = together(queue, "a", 4)
    joined(queue, "b", 6)
    assert served(queue, 3) == ["b", "b", "b"]  # its turns come before the group's
    assert next(queue.unserved("f", coming=0)).unit is unit
    assert served(queue, 1) == ["b"]  # not begun: boxes go past it
    queue.begin(unit, covered=True)
    assert served(queue, 5) == ["a"] * 4 + ["b"]


def test_a_group_that_has_begun_goes_before_all_else() -> None:
    queue = Queue(most=100)
    unit, members = together(queue, "a", 2)
    joined(queue, "urgent", 1, priority=100)
    queue.begin(unit, covered=False)
    assert [queue.position(ticket) for ticket in members] == [0, 1]
    assert served(queue, 3) == ["a", "a", "urgent"]


def test_the_bound_counts_every_sandbox_that_is_waited_for() -> None:
    queue = Queue(most=5)
    together(queue, "a", 4)
    assert queue.has_room(1)
    assert not queue.has_room(2)
    joined(queue, "b")
    assert not queue.has_room()
