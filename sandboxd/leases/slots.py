"""Spreads leases over processors, so that `nproc` inside tells a share. Synchronous and pure.

A bound on time alone lets a program start as many threads as the machine has processors, which
then stand still together for most of each period. A slot stands for a processor as each guest
counts those that it may use; warm stock has none, for little or nothing runs in it.
"""

from __future__ import annotations

import math
from itertools import accumulate

from sandboxd.model.claim import Affinity


class Slots:
    """Who has which. count: slots in all; below 2 nobody is given any."""

    def __init__(self, count: int) -> None:
        self._leases = [0] * max(0, count)  # living ones, by slot
        self._taken: dict[str, Affinity] = {}
        self._lent = 0

    def lend(self, share: float) -> Affinity | None:
        """As many for what runs before anybody has a lease on it, each time others: they count for
        nobody. None as for `take`.
        """
        wanted = max(1, math.ceil(share))
        if wanted >= len(self._leases):
            return None
        self._lent = (self._lent + wanted) % len(self._leases)
        return Affinity(count=wanted, first=self._lent)

    def take(self, lease_id: str, share: float) -> Affinity | None:
        """As many slots as the share needs, side by side, where the fewest leases are; None for a
        share of all there is. The same lease gets the same again.
        """
        if lease_id in self._taken:
            return self._taken[lease_id]
        wanted = max(1, math.ceil(share))
        if wanted >= len(self._leases):
            return None
        up_to = [0, *accumulate(self._leases + self._leases[:wanted])]
        loads = [up_to[at + wanted] - up_to[at] for at in range(len(self._leases))]
        chosen = Affinity(count=wanted, first=loads.index(min(loads)))
        self.note(lease_id, chosen)
        return chosen

    def note(self, lease_id: str, affinity: Affinity | None) -> None:
        """A lease has them, whoever gave them to it."""
        if affinity is not None and lease_id not in self._taken:
            self._taken[lease_id] = affinity
            self._count(affinity, 1)

    def drop(self, lease_id: str) -> None:
        """Its box is gone, or it never had one."""
        if (affinity := self._taken.pop(lease_id, None)) is not None:
            self._count(affinity, -1)

    def _count(self, affinity: Affinity, by: int) -> None:
        slots = len(self._leases)
        for at in range(min(affinity.count, slots)):  # there may have been more of them once
            self._leases[(affinity.first + at) % slots] += by
