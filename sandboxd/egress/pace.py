"""So many at once, and so many a second after that. Synchronous but for the wait."""

from __future__ import annotations

import anyio


class Pace:
    """A bucket of turns that fills up steadily."""

    def __init__(self, per_s: float, *, at_once: int) -> None:
        self._per_s = per_s
        self._most = float(at_once)
        self._turns = self._most
        self._at = anyio.current_time()

    def ready(self) -> bool:
        """Take a turn, if there is one."""
        now = anyio.current_time()
        self._turns = min(self._most, self._turns + (now - self._at) * self._per_s)
        self._at = now
        if self._turns < 1:
            return False
        self._turns -= 1
        return True

    async def turn(self) -> None:
        """Wait for a turn, and take it."""
        while not self.ready():  # noqa: ASYNC110 - turns come with time, and others take some
            await anyio.sleep((1 - self._turns) / self._per_s)
