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

_EVERY_S = 900.0  # well under the guest's orphan limit of an hour
_WORD_S = 10.0


class Words:
    """One pool's. due_at: when the next round is due, on the loop's clock."""

    def __init__(self, stock: Stock, *, on_silent: Callable[[Box, Exception], None]) -> None:
        self._stock = stock
        self._on_silent = on_silent
        self.due_at = 0.0

    def put_off(self) -> None:
        """The next round is a while from now."""
        self.due_at = anyio.current_time() + _EVERY_S

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
