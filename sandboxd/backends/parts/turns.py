"""Who may act on a box: one at a time, whoever comes second finds it done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Turns:
    """A lock for each box that somebody acts on, and none for the others."""

    def __init__(self) -> None:
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def alone(self, box_id: str) -> AsyncIterator[None]:
        """While inside, nobody else is, for that box."""
        lock = self._locks.setdefault(box_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(box_id, None)
