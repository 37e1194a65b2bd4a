"""The queue before a pool: bounded, by priority and then first come, first served. Synchronous."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from dataclasses import dataclass, field

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.pool.stock import Box

# Across all pools, so that their callers can be compared by how long they have waited.
_NUMBERS = itertools.count()


@dataclass(slots=True, eq=False)
class Ticket:
    """A caller's place in the queue. `settled` is set once `box` or `error` is there."""

    spec: BoxSpec
    fingerprint: str
    priority: int = 0
    number: int = field(default_factory=lambda: next(_NUMBERS))  # older ones have smaller ones
    box: Box | None = None
    error: SandboxdError | None = None
    making: Box | None = None  # a box that is being made for this ticket alone
    settled: anyio.Event = field(default_factory=anyio.Event)

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
        return Ticket(self.spec, self.fingerprint, self.priority, self.number)


def _place(ticket: Ticket) -> tuple[int, int]:
    return (-ticket.priority, ticket.number)


class Queue:
    """Tickets that wait, the next one first."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._line: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, ticket: object) -> bool:
        return isinstance(ticket, Ticket) and self._find(ticket) is not None

    @property
    def full(self) -> bool:
        """Whether the bound is reached."""
        return len(self._line) >= self.most

    def join(self, ticket: Ticket) -> None:
        """Take a place. The caller of this checks `full` first."""
        insort(self._line, ticket, key=_place)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, wherever it is. Idempotent."""
        place = self._find(ticket)
        if place is not None:
            del self._line[place]

    def waiting(self) -> list[Ticket]:
        """Those who wait, the next first."""
        return list(self._line)

    def position(self, ticket: Ticket) -> int:
        """0 is next, and also for one who does not wait."""
        return self._find(ticket) or 0

    def pop(self, fingerprint: str, *, unserved: bool = False) -> Ticket | None:
        """The next ticket that a box of that fingerprint serves, off the queue.

        unserved: only one for which no box of its own is in the making.
        """
        for place, ticket in enumerate(self._line):
            if ticket.fingerprint == fingerprint and not (unserved and ticket.making):
                del self._line[place]
                return ticket
        return None

    def begun(self, fingerprint: str) -> int:
        """How many wait with a box of their own in the making, of that fingerprint."""
        return sum(t.making is not None and t.fingerprint == fingerprint for t in self._line)

    def unserved(self, fingerprint: str, *, coming: int) -> list[Ticket]:
        """Those for whom no box is in the making.

        coming: boxes of that fingerprint that are being made for whoever is next.
        """
        unserved = []
        for ticket in self._line:
            if ticket.fingerprint == fingerprint and not ticket.making and coming > 0:
                coming -= 1
            elif not ticket.making:
                unserved.append(ticket)
        return unserved

    def _find(self, ticket: Ticket) -> int | None:
        place = bisect_left(self._line, _place(ticket), key=_place)
        # Only the ticket itself: one that took its place again has the same number.
        found = place < len(self._line) and self._line[place] is ticket
        return place if found else None
