"""Which processors each box is bound to, so that `nproc` inside tells its share. Synchronous.

A bound on time alone lets a program start as many threads as the machine has processors, which
then stand still together for most of each period.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

Processors = tuple[int, ...]  # in order; none: not bound at all
UNBOUND: Processors = ()


class Cpus:
    """The book of one backend. available: the processors that boxes may run on; none: bind none."""

    def __init__(self, available: Iterable[int]) -> None:
        self._available = sorted(set(available))
        self._bound: dict[str, Processors] = {}
        self._boxes: Counter[int] = Counter()

    def take(self, box_id: str, share: float) -> Processors:
        """Where a new box shall run: as many whole processors as its share needs, those with the
        fewest boxes; none for one whose share is all there is. The same box gets the same again.
        """
        if box_id in self._bound:
            return self._bound[box_id]
        wanted = max(1, math.ceil(share))
        if wanted >= len(self._available):
            return UNBOUND
        emptiest = sorted(self._available, key=lambda number: (self._boxes[number], number))
        chosen = tuple(sorted(emptiest[:wanted]))
        self.note(box_id, chosen)
        return chosen

    def note(self, box_id: str, processors: Processors) -> None:
        """A box runs there, whoever made it."""
        if processors and box_id not in self._bound:
            self._bound[box_id] = processors
            self._boxes.update(processors)

    def drop(self, box_id: str) -> None:
        """It is gone."""
        self._boxes.subtract(self._bound.pop(box_id, UNBOUND))


def parse_list(text: str) -> Processors:
    """The kernel's and the engines' way to write processors, as `0-3,8`. What is none: unbound."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (last or first).isdigit()):
            return UNBOUND
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def write_list(processors: Processors) -> str:
    """The same the other way round."""
    return ",".join(map(str, processors))
