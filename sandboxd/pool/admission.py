"""The queue before a pool: bounded, by priority, and fair between runs. Synchronous.

Each ticket has a number of turns: a run's next one comes a turn after its last, and a run that is
new to the line after the turn that is being served. So runs are served in turn, however much each
has asked for, and within a run it is first come, first served. A turn never changes, so nobody who
waits is overtaken for ever by those who come later. See docs/admission.md.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.pool.stock import Box

# Across all pools, so that their callers can be compared by how long they have waited.
_NUMBERS = itertools.count()

Flow = tuple[str, ...]  # whose turn it is: an owner, or one of its runs
_Place = tuple[int, int, int, int]


@dataclass(slots=True, eq=False)
class Unit:
    """Tickets that are served together: boxes go to all of them, before others, or to none.

    begun: when it began to take boxes, as a number that grows; None before. covered: there was
    room for all of it then, so it waits for nobody.
    """

    size: int
    number: int = field(default_factory=lambda: next(_NUMBERS))  # older ones have smaller ones
    begun: int | None = None
    covered: bool = False

    def begin(self, *, covered: bool) -> None:
        """From now on boxes go to it first."""
        self.begun, self.covered = next(_NUMBERS), covered


@dataclass(slots=True, eq=False)
class Ticket:
    """A caller's place in the queue. `settled` is set once `box` or `error` is there.

    turn, number: its place among those of its priority, given when it joins; smaller ones first.
    """

    spec: BoxSpec
    fingerprint: str
    priority: int = 0
    flow: Flow = ()
    unit: Unit | None = None
    turn: int = 0
    number: int = field(default_factory=lambda: next(_NUMBERS))  # older ones have smaller ones
    box: Box | None = None
    error: SandboxdError | None = None
    making: Box | None = None  # a box that is being made for this ticket alone
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def served(self) -> bool:
        """Whether boxes go to it: not yet to one of a unit that has not begun."""
        return self.unit is None or self.unit.begun is not None

    def give(self, box: Box) -> None:
        """Hand over a box that is in state LEASED."""
        self.box = box
        self.settled.set()

    def refuse(self, error: SandboxdError) -> None:
        """Answer with an error instead."""
        self.error = error
        self.settled.set()

    def again(self) -> Ticket:
        """A ticket for the same place in the line, for a caller whose box was no good."""
        return Ticket(
            self.spec,
            self.fingerprint,
            self.priority,
            self.flow,
            self.unit,
            self.turn,
            self.number,
        )


def _place(ticket: Ticket) -> _Place:
    """A unit that has begun comes before all else: what it holds already must not lie idle."""
    if ticket.unit is not None and ticket.unit.begun is not None:
        return (0, ticket.unit.begun, ticket.turn, ticket.number)
    return (1, -ticket.priority, ticket.turn, ticket.number)


class Queue:
    """Tickets that wait, the next one first."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._line: list[Ticket] = []
        self._turns: dict[int, int] = {}  # by priority: the turn that was served last
        self._flows: dict[tuple[int, Flow], list[Ticket]] = {}  # those who wait, by turn

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, ticket: object) -> bool:
        return isinstance(ticket, Ticket) and self._find(ticket) is not None

    def has_room(self, count: int = 1) -> bool:
        """Whether so many more may wait."""
        return len(self._line) + count <= self.most

    def join(self, *tickets: Ticket) -> None:
        """Take the next places, all of one flow and priority; the caller checks `has_room` first.

        Tickets of one unit have one turn, that of the last of them: a group of eight is as many
        turns as eight requests.
        """
        first = tickets[0]
        waiting = self._flows.get((first.priority, first.flow))
        last = waiting[-1].turn if waiting else 0
        turn = max(last, self._turns.get(first.priority, 0)) + len(tickets)
        for ticket in tickets:
            ticket.turn = turn
            self._insert(ticket)

    def rejoin(self, ticket: Ticket) -> None:
        """Back to the place that it had."""
        self._insert(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, wherever it is. Idempotent."""
        place = self._find(ticket)
        if place is not None:
            self._remove(place)

    def refuse(self, tickets: Iterable[Ticket], error: SandboxdError) -> None:
        """Answer some of those who wait with an error instead."""
        for ticket in tickets:
            self.leave(ticket)
            ticket.refuse(error)

    def begin(self, unit: Unit, *, covered: bool) -> None:
        """Boxes go to that unit first from now on. covered: there is room for all of it."""
        tickets = [ticket for ticket in self._line if ticket.unit is unit]
        for ticket in tickets:
            self.leave(ticket)
        unit.begin(covered=covered)
        for ticket in tickets:
            self._insert(ticket)

    def everybody(self) -> list[Ticket]:
        """All who wait, the next first."""
        return list(self._line)

    def units_over(self, size: int) -> list[Ticket]:
        """The tickets of all units that are larger."""
        return [t for t in self._line if t.unit is not None and t.unit.size > size]

    def waiting(self) -> list[Ticket]:
        """Those to whom boxes go, the next first."""
        return [ticket for ticket in self._line if ticket.served]

    def position(self, ticket: Ticket) -> int:
        """0 is next, and also for one who does not wait."""
        return self._find(ticket) or 0

    def pop(self, fingerprint: str, *, unserved: bool = False) -> Ticket | None:
        """The next ticket that a box of that fingerprint serves, off the queue.

        unserved: only one for which no box of its own is in the making.
        """
        for place, ticket in enumerate(self._line):
            fits = ticket.fingerprint == fingerprint and ticket.served
            if fits and not (unserved and ticket.making):
                return self._serve(place)
        return None

    def serve(self, ticket: Ticket) -> None:
        """Take a ticket off the queue because a box is there for it."""
        place = self._find(ticket)
        if place is not None:
            self._serve(place)

    def begun(self, fingerprint: str) -> int:
        """How many wait with a box of their own in the making, of that fingerprint."""
        return sum(t.making is not None and t.fingerprint == fingerprint for t in self._line)

    def unserved(self, fingerprint: str, *, coming: int) -> Iterator[Ticket]:
        """Those for whom no box is in the making, units that have not begun among them.

        coming: boxes of that fingerprint that are being made for whoever is next.
        """
        for ticket in self._line:
            if ticket.making:
                continue
            if ticket.fingerprint == fingerprint and ticket.served and coming > 0:
                coming -= 1
            else:
                yield ticket

    def _insert(self, ticket: Ticket) -> None:
        insort(self._line, ticket, key=_place)
        waiting = self._flows.setdefault((ticket.priority, ticket.flow), [])
        insort(waiting, ticket, key=_turn)

    def _serve(self, place: int) -> Ticket:
        ticket = self._remove(place)
        self._turns[ticket.priority] = max(self._turns.get(ticket.priority, 0), ticket.turn)
        return ticket

    def _remove(self, place: int) -> Ticket:
        ticket = self._line.pop(place)
        flow = (ticket.priority, ticket.flow)
        waiting = self._flows[flow]
        del waiting[bisect_left(waiting, _turn(ticket), key=_turn)]
        if not waiting:
            del self._flows[flow]
        return ticket

    def _find(self, ticket: Ticket) -> int | None:
        place = bisect_left(self._line, _place(ticket), key=_place)
        # Only the ticket itself: one that took its place again has the same number.
        found = place < len(self._line) and self._line[place] is ticket
        return place if found else None


def _turn(ticket: Ticket) -> tuple[int, int]:
    return (ticket.turn, ticket.number)
