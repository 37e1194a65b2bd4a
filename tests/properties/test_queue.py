"""The queue against a plain model: whoever joins and leaves, the order holds, nobody is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandboxd.model.template import BoxSpec
from sandboxd.pool.admission import Queue, Ticket, Unit

SPEC = BoxSpec(image="host")
FLOWS = st.sampled_from(["a", "b", "c", "d"])


class QueueMachine(RuleBasedStateMachine):
    """Drives a queue, and counts for each ticket how often each other run went before it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(most=10_000)
        self.waiting: list[Ticket] = []
        self.out: list[tuple[Ticket, list[int]]] = []  # each with those that it went before
        self.passed: dict[int, Counter[str]] = {}
        self.ahead: dict[int, int] = {}

    def enter(self, tickets: list[Ticket]) -> None:
        flow, priority = tickets[0].flow, tickets[0].priority
        mine = sum(t.flow == flow and t.priority == priority for t in self.waiting)
        self.queue.join(*tickets)
        self.waiting += tickets
        for place, ticket in enumerate(tickets, mine + 1):
            self.passed[ticket.number] = Counter()
            self.ahead[ticket.number] = max(place, mine + len(tickets))

    @rule(flow=FLOWS, priority=st.sampled_from([0, 0, 0, 5]))
    def one(self, flow: str, priority: int) -> None:
        self.enter([Ticket(SPEC, "f", priority, (flow,))])

    @rule(flow=FLOWS, count=st.integers(1, 5))
    def group(self, flow: str, count: int) -> None:
        unit = Unit(count)
        self.enter([Ticket(SPEC, "f", 0, (flow,), unit) for _ in range(count)])

    @precondition(lambda self: any(t.unit and t.unit.begun is None for t in self.waiting))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        units = [t.unit for t in self.waiting if t.unit is not None and t.unit.begun is None]
        self.queue.begin(data.draw(st.sampled_from(units)), covered=False)

    @precondition(lambda self: any(t.served for t in self.waiting))
    @rule()
    def serve(self) -> None:
        first = self.queue.waiting()[0]
        found = self.queue.pop("f")
        assert found is first
        self.waiting.remove(found)
        passed: list[int] = []
        for other in self.waiting:
            same = other.priority == found.priority and other.flow != found.flow
            older = other.number < found.number
            if same and older and found.unit is None and other.unit is None:
                self.passed[other.number][found.flow[0]] += 1
                passed.append(other.number)
        self.out.append((found, passed))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.queue.leave(ticket)
        self.waiting.remove(ticket)

    @precondition(lambda self: self.out)
    @rule()
    def come_back(self) -> None:
        """Whoever was served in vain has its place again, and went before nobody."""
        ticket, passed = self.out.pop()
        for number in passed:
            self.passed[number][ticket.flow[0]] -= 1
        again = ticket.again()
        self.queue.rejoin(again)
        self.waiting.append(again)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert set(map(id, self.queue.everybody())) == set(map(id, self.waiting))
        assert len(self.queue) == len(self.waiting)

    @invariant()
    def the_line_is_in_order(self) -> None:
        line = self.queue.everybody()
        assert [self.queue.position(ticket) for ticket in line] == list(range(len(line)))
        begun = [t.unit is not None and t.unit.begun is not None for t in line]
        assert begun == sorted(begun, reverse=True)
        rest = [t for t, first in zip(line, begun, strict=True) if not first]
        assert [t.priority for t in rest] == sorted((t.priority for t in rest), reverse=True)

    @invariant()
    def within_a_run_it_is_first_come_first_served(self) -> None:
        singles = [t for t in self.queue.everybody() if t.unit is None]
        for flow in {(t.flow, t.priority) for t in singles}:
            numbers = [t.number for t in singles if (t.flow, t.priority) == flow]
            assert numbers == sorted(numbers)

    @invariant()
    def no_later_run_goes_before_a_request_more_often_than_its_turn(self) -> None:
        """A request with n of its run before it lets each run that came later pass n + 1 times."""
        for ticket in self.waiting:
            for count in self.passed[ticket.number].values():
                assert count <= self.ahead[ticket.number] + len(self.out)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
