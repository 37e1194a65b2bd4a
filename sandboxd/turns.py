"""One at a time for each box, or lease: whoever comes second finds it done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Turns:
    """A lock for each that somebody acts on, by its id, and none for the others."""

    def __init__(self) -> None:
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """While inside, nobody else is, for that one."""
        lock = self._locks.setdefault(key, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(key, None)
