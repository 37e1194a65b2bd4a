"""What all pools share: the number of boxes that may exist in this installation. Synchronous.

Callers come before stock, whichever pool they wait at, and older callers before younger ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxd.model.box import BoxState

if TYPE_CHECKING:
    from sandboxd.pool.warm_pool import WarmPool


class House:
    """All pools, and the room they share. most: boxes in whatever state."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self.pools: dict[str, WarmPool] = {}

    @property
    def exists(self) -> int:
        """How many boxes there are, in whatever state."""
        return sum(pool.stock.exists for pool in self.pools.values())

    @property
    def room(self) -> int:
        """How many more boxes may exist."""
        return self.most - self.exists

    def room_for(self, pool: WarmPool) -> int:
        """Room for a pool's callers: less what those of other pools need who have waited longer."""
        since = pool.waits_since
        others = (other for other in self.pools.values() if other is not pool)
        return self.room - sum(o.could_begin for o in others if o.waits_since < since)

    def spare(self, pool: WarmPool) -> int:
        """Room for a pool's stock: less what any caller of another pool needs."""
        return self.room - sum(o.could_begin for o in self.pools.values() if o is not pool)

    def make_room(self) -> None:
        """Give up stock that nobody waits for, the largest first, as far as callers need room."""
        needed = sum(pool.could_begin for pool in self.pools.values())
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
