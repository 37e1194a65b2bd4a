"""What all pools share: the number of boxes that may exist in this installation. Synchronous.

Callers come before stock, whichever pool they wait at, and pools that have callers take turns.

Units (groups) are where two callers could wait for each other for ever, each holding what the
other needs. So a unit begins to take boxes only when there is room for all that it lacks, or when
no other one is waiting for room: at most one holds boxes and waits for more.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sandboxd.model.box import BoxState
from sandboxd.pool.admission import Unit

if TYPE_CHECKING:
    from sandboxd.pool.warm_pool import WarmPool


class House:
    """All pools, and the room they share. most: boxes in whatever state."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self.pools: dict[str, WarmPool] = {}
        self._gathering: Unit | None = None  # the one that may wait for room
        self._begins = itertools.count(1)

    @property
    def exists(self) -> int:
        """How many boxes there are, in whatever state."""
        return sum(pool.stock.exists for pool in self.pools.values())

    @property
    def room(self) -> int:
        """How many more boxes may exist."""
        return self.most - self.exists

    def room_for(self, pool: WarmPool) -> int:
        """Room for a pool's callers: less what goes to those of other pools before them. What a
        unit was promised it has before anybody.
        """
        mine = pool.demand.precedence
        others = [other.demand for other in self.pools.values() if other is not pool]
        kept = sum(other.promised for other in others)
        first = sum(
            max(0, other.could_begin - other.promised)
            for other in others
            if other.precedence < mine
        )
        return max(min(pool.demand.promised, self.room - kept), self.room - kept - first)

    def spare(self, pool: WarmPool) -> int:
        """Room for a pool's stock: less what any caller of another pool needs."""
        others = (other.demand for other in self.pools.values() if other is not pool)
        return self.room - sum(max(other.promised, other.could_begin) for other in others)

    def serves(self, pool: WarmPool) -> None:
        """A pool began a box for a caller: the others' turn comes first."""
        pool.demand.last_begun = next(self._begins)

    # Units.

    def may_begin(self, unit: Unit, pool: WarmPool) -> bool:
        """Whether a unit that is next in its pool may begin to take boxes; if so it does."""
        missing = pool.demand.missing(unit)
        covered = missing <= 0 or missing <= min(pool.demand.room, self.room_for(pool))
        if not covered and not self._gathers(unit):
            return False
        pool.begin(unit, covered=covered)
        if not covered:
            self._gathering = unit
        self.wake()  # others may have let it go first
        return True

    def _gathers(self, unit: Unit) -> bool:
        """Whether a unit may begin although it has to wait for room: one at a time, the one that
        has waited longest.
        """
        if self._gathering is not None:
            return False
        return all(
            other is None or other is unit or unit.number < other.number
            for other in (pool.demand.next_unit for pool in self.pools.values())
        )

    def finished(self, unit: Unit) -> None:
        """A unit has all that it wants, or wants nothing any more. Idempotent."""
        if self._gathering is unit:
            self._gathering = None
            self.wake()

    # Making room.

    def make_room(self) -> None:
        """Give up stock that nobody waits for, the largest first, as far as callers need room."""
        needed = sum(pool.demand.could_begin for pool in self.pools.values())
        if needed == 0:
            return
        going = sum(pool.stock.count(BoxState.DISPOSING) for pool in self.pools.values())
        for _ in range(needed - self.room - going):
            richest = max(self.pools.values(), key=lambda pool: pool.stock.count(BoxState.WARM))
            if not richest.drop_oldest():
                return

    def gone(self, box_id: str) -> None:
        """A box is gone: strike it off its pool's book, and let every pool look at the room."""
        for pool in self.pools.values():
            pool.strike(box_id)
        self.wake()

    def wake(self) -> None:
        """Have every pool look again."""
        for pool in self.pools.values():
            pool.wake()
