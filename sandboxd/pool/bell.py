"""Wakes a pool's loop: at once for callers, a moment later for what only refills the stock."""

from __future__ import annotations

import anyio

_REFILL_LAG_S = 0.01


class Bell:
    """Rung by whoever changes what the loop looks at; heard by the loop alone."""

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self._wanted = anyio.Event()

    def ring(self, *, callers: bool) -> None:
        """Have the loop look again. callers: whether any wait."""
        self._changed.set()
        if callers:
            self._wanted.set()

    def still(self) -> None:
        """The loop begins to look: what comes from now on is news."""
        self._changed, self._wanted = anyio.Event(), anyio.Event()

    async def heard(self, *, by: float) -> bool:
        """Wait for news until then, on the loop's clock; False if there was none.

        Whoever took a box is being served right now: making the next one at once would compete
        with that for the processor. Whoever waits for a make does not wait for this.
        """
        with anyio.move_on_after(by - anyio.current_time()) as scope:
            await self._changed.wait()
        with anyio.move_on_after(_REFILL_LAG_S):
            await self._wanted.wait()
        return not scope.cancelled_caught
