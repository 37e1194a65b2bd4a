"""The queue before a pool: bounded, by priority and then first come, first served. Synchronous."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.pool.stock import Box


@dataclass(slots=True, eq=False)
class Ticket:
    """A caller's place in the queue. `settled` is set once `box` or `error` is there."""

    spec: BoxSpec
    fingerprint: str
    priority: int = 0
    box: Box | None = None
    error: SandboxdError | None = None
    left: bool = False  # the caller went away
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


class Queue:
    """Tickets that wait. Those who left are skipped and do not count."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._heap: list[tuple[int, int, Ticket]] = []
        self._numbers = itertools.count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def join(self, ticket: Ticket) -> None:
        """Take a place. The caller of this checks `full` first."""
        heapq.heappush(self._heap, (-ticket.priority, next(self._numbers), ticket))
        self._length += 1

    @property
    def full(self) -> bool:
        """Whether the bound is reached."""
        return self._length >= self.most

    def leave(self, ticket: Ticket) -> None:
        """Give up a place. Idempotent; a settled ticket has none."""
        if not ticket.left and not ticket.settled.is_set():
            ticket.left = True
            self._length -= 1

    def waiting(self) -> list[Ticket]:
        """Those who wait, the next first."""
        self._drop_left()
        return [
            ticket for _, _, ticket in sorted(self._heap, key=lambda e: e[:2]) if not ticket.left
        ]

    def position(self, ticket: Ticket) -> int:
        """0 is next."""
        return self.waiting().index(ticket)

    def pop(self, fingerprint: str) -> Ticket | None:
        """The next ticket that a box of that fingerprint serves, off the queue."""
        self._drop_left()
        if self._heap and self._heap[0][2].fingerprint == fingerprint:
            self._length -= 1
            return heapq.heappop(self._heap)[2]
        for ticket in self.waiting():
            if ticket.fingerprint == fingerprint:
                self.remove(ticket)
                return ticket
        return None

    def remove(self, ticket: Ticket) -> None:
        """Take one ticket off the queue, wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[2] is not ticket]
        heapq.heapify(self._heap)
        if not ticket.left:
            self._length -= 1

    def _drop_left(self) -> None:
        while self._heap and self._heap[0][2].left:
            heapq.heappop(self._heap)
