"""How long a pool's refill rests after failed makes: longer with each one more."""

from __future__ import annotations

import anyio

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Rest:
    """until: when refill may go on, on the loop's clock."""

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    @property
    def over(self) -> bool:
        """Whether refill may go on."""
        return anyio.current_time() >= self.until

    def begin(self) -> None:
        """A make failed."""
        self.until = anyio.current_time() + min(
            _FIRST_PAUSE_S * 2.0**self._failures, _LONGEST_PAUSE_S
        )
        self._failures += 1

    def end(self) -> None:
        """A make went well, or what is made has changed."""
        self._failures, self.until = 0, 0.0
