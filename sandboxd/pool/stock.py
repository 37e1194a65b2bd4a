"""The stock book of one pool: every box that exists and its state. Synchronous, so that no `await`
can come between reading and writing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.guest.client import Guest
from sandboxd.model.box import NEXT_BOX_STATES, BoxRef, BoxState

DiaryEntry = Mapping[str, Any]  # JSON: `at` in Unix seconds, `event`, and what belongs to it


@dataclass(slots=True, eq=False)
class Box:
    """One box in the book. `ref` and `guest` are there once it was made.

    diary: what was done in it before anybody had it, for the lease that gets it. dead: its death
    was heard of.
    """

    box_id: str
    fingerprint: str
    pool: str
    state: BoxState = BoxState.MAKING
    ref: BoxRef | None = None
    guest: Guest | None = None
    diary: tuple[DiaryEntry, ...] = ()
    dead: bool = False


class Stock:
    """Boxes by id and by state. Every change of state goes through `move` and its table."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        self._warm: list[Box] = []
        self._counts: Counter[BoxState] = Counter()
        self._making: Counter[str] = Counter()  # by fingerprint

    def __repr__(self) -> str:
        counts = ", ".join(f"{state}={self._counts[state]}" for state in BoxState)
        return f"<Stock {counts}>"

    def __iter__(self) -> Iterator[Box]:
        return iter(list(self._boxes.values()))

    def count(self, state: BoxState) -> int:
        """How many boxes are in that state."""
        return self._counts[state]

    def making(self, fingerprint: str) -> int:
        """How many boxes of that fingerprint are in the making."""
        return self._making[fingerprint]

    @property
    def exists(self) -> int:
        """Everything that takes room, whatever its state."""
        return len(self._boxes)

    def get(self, box_id: str) -> Box | None:
        """The box of that id, unless it is gone."""
        return self._boxes.get(box_id)

    def enter(self, box: Box) -> None:
        """Add a box: one that is being made, or an adopted one in whatever state it is."""
        if box.box_id in self._boxes:
            raise ValueError(f"box {box.box_id} is in the book already")
        self._boxes[box.box_id] = box
        self._counts[box.state] += 1
        if box.state is BoxState.WARM:
            self._warm.append(box)
        elif box.state is BoxState.MAKING:
            self._making[box.fingerprint] += 1

    def move(self, box: Box, state: BoxState) -> None:
        """Change a box's state. Raises ValueError for a step that the table does not have: a used
        box can never become stock again.
        """
        if state not in NEXT_BOX_STATES[box.state]:
            raise ValueError(f"box {box.box_id} cannot go from {box.state} to {state}")
        self._counts[box.state] -= 1
        self._counts[state] += 1
        if box.state is BoxState.WARM:
            self._warm.remove(box)
        elif box.state is BoxState.MAKING:
            self._making -= Counter([box.fingerprint])  # drops what comes to nothing
        box.state = state
        if state is BoxState.WARM:
            self._warm.append(box)
        elif state is BoxState.GONE:
            self._counts[state] = 0
            del self._boxes[box.box_id]

    def take(self, fingerprint: str) -> Box | None:
        """The warm box that was made last with that fingerprint, now LEASED; None without one."""
        for box in reversed(self._warm):
            if box.fingerprint == fingerprint:
                self.move(box, BoxState.LEASED)
                return box
        return None

    def take_many(self, fingerprint: str, count: int) -> list[Box]:
        """Up to so many, as `take`."""
        taken = [self.take(fingerprint) for _ in range(min(count, self.in_stock(fingerprint)))]
        return [box for box in taken if box is not None]

    def in_stock(self, fingerprint: str) -> int:
        """How many warm boxes there are of that fingerprint."""
        return sum(box.fingerprint == fingerprint for box in self._warm)

    def stale(self, fingerprint: str) -> list[Box]:
        """Warm boxes of any other fingerprint."""
        return [box for box in self._warm if box.fingerprint != fingerprint]

    def surplus(self, target: int) -> list[Box]:
        """The oldest warm boxes beyond so many."""
        return self._warm[: max(0, len(self._warm) - target)]

    def warm(self) -> list[Box]:
        """The warm boxes, oldest first."""
        return list(self._warm)
