"""So many at once, and so many a second after that. Synchronous but for the wait."""

from __future__ import annotations

import anyio

_DUST = 1e-9  # what sums of shares are off by


class TokenBucket:
    """Full at first, and filled steadily.

    per_s: tokens that come in a second. at_once: how many it holds. Both may be changed: what was
    spent stays spent until it has come again.
    """

    def __init__(self, per_s: float, *, at_once: float) -> None:
        self.per_s = per_s
        self.at_once = at_once
        self._spent = 0.0
        self._at: float | None = None  # it may be made before a loop runs

    @property
    def left(self) -> float:
        """How many may be taken now; below zero after `at_once` was lowered."""
        now = anyio.current_time()
        if self._at is not None:
            self._spent = max(0.0, self._spent - (now - self._at) * self.per_s)
        self._at = now
        return self.at_once - self._spent

    @property
    def whole(self) -> int:
        """How many whole ones may be taken now."""
        return int(self.left + _DUST)

    def take(self, count: float = 1) -> float:
        """Take so many, or none; returns the seconds after which there are enough, 0 if taken."""
        missing = count - self.left
        if missing > _DUST:
            return missing / self.per_s
        self._spent += count
        return 0.0

    async def turn(self) -> None:
        """Wait for a token, and take it."""
        while (wait_s := self.take()) > 0:  # noqa: ASYNC110 - they come with time
            await anyio.sleep(wait_s)
