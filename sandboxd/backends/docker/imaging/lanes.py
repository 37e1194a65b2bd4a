"""A bound on what is asked of one registry at a time, and patience when it says: fewer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

_FIRST_PAUSE_S = 2.0
_DOUBLINGS = 5  # of that


@dataclass(slots=True, eq=False)
class Lane:
    """The way to one registry. quiet_until: on `anyio.current_time`; nothing is asked before."""

    slots: anyio.Semaphore
    users: int = 0
    refusals: int = 0  # in a row
    quiet_until: float = 0.0

    async def quiet(self) -> None:
        """Wait until the registry may be asked again."""
        while anyio.current_time() < self.quiet_until:  # noqa: ASYNC110 - it may be put off
            await anyio.sleep_until(self.quiet_until)

    def refused(self, asked_s: float | None) -> float:
        """The registry wants fewer requests; says how long nothing is asked of it now, in seconds.

        asked_s: what it asked for itself, which is kept to, however long.
        """
        pause = _FIRST_PAUSE_S * 2 ** min(self.refusals, _DOUBLINGS)
        pause = pause * random.uniform(0.75, 1.25) if asked_s is None else asked_s  # noqa: S311
        self.refusals += 1
        self.quiet_until = max(self.quiet_until, anyio.current_time() + pause)
        return self.quiet_until - anyio.current_time()

    def answered(self) -> None:
        """The registry let something through."""
        self.refusals = 0


class Lanes:
    """The lanes in use, by registry; one that nobody uses and that is not quiet is forgotten."""

    def __init__(self, *, wide: int) -> None:
        """wide: how many may be on each lane at once."""
        self._wide = wide
        self._lanes: dict[str, Lane] = {}

    @asynccontextmanager
    async def on(self, registry: str) -> AsyncIterator[Lane]:
        """A place on the lane to a registry, held until the block ends; waits for one."""
        self._forget_idle()
        lane = self._lanes.setdefault(registry, Lane(anyio.Semaphore(self._wide)))
        lane.users += 1
        try:
            async with lane.slots:
                yield lane
        finally:
            lane.users -= 1

    def _forget_idle(self) -> None:
        now = anyio.current_time()
        for registry, lane in list(self._lanes.items()):
            if not lane.users and lane.quiet_until <= now:
                del self._lanes[registry]
