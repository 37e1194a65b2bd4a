"""Says a word to warm boxes now and then: their guests would end themselves as orphans without one,
and whoever does not answer is found dead before a caller finds it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.model.box import BoxState
from sandboxd.pool.stock import Box, Stock

_LONGEST_PAUSE_S = 900.0
_WORDS_A_LIFE = 4  # one that comes late, or not at all, is no death yet
_WORD_S = 10.0


class Words:
    """One pool's. due_at: when the next round is due, on the loop's clock.

    orphan_s: without a word, after which a warm box ends itself.
    """

    def __init__(
        self, stock: Stock, *, orphan_s: float, on_silent: Callable[[Box, Exception], None]
    ) -> None:
        self._stock = stock
        self._every_s = min(_LONGEST_PAUSE_S, orphan_s / _WORDS_A_LIFE)
        self._on_silent = on_silent
        self.due_at = 0.0

    def put_off(self) -> None:
        """The next round is a while from now."""
        self.due_at = anyio.current_time() + self._every_s

    async def say(self) -> None:
        """One round; tells of each warm box that did not answer."""
        for box in self._stock.warm():
            if box.guest is None or box.state is not BoxState.WARM:
                continue
            try:
                with anyio.fail_after(_WORD_S):
                    await box.guest.hello()
            except (GuestLost, SandboxdError, TimeoutError) as error:
                if box.state is BoxState.WARM:
                    self._on_silent(box, error)
