"""Measures what boxes write to disk, and ends those that are over their limit.

No quota can be had from an overlay on a common file system, so this limit is `watched`: a box may
be over it for as long as one round takes.
"""

from __future__ import annotations

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.local.boxes import BoxShelf
from sandboxd.backends.local.deaths import over_disk
from sandboxd.backends.local.kernel.trees import disk_usage
from sandboxd.backends.local.living import LivingBox, Roster


class DiskWatch:
    """Goes round the living boxes, one at a time."""

    def __init__(self, roster: Roster, shelf: BoxShelf, *, every_s: float) -> None:
        self._roster = roster
        self._shelf = shelf
        self._every_s = every_s
        self._limiter = CapacityLimiter(1)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(self._every_s)
            for box in self._roster.living():
                await self.measure(box)

    async def measure(self, box: LivingBox) -> None:
        """Take one reading; over the limit the box ends with it as evidence."""
        limit = box.record.disk_limit_bytes
        home = self._shelf.places(box.box_id).home
        used = await to_thread.run_sync(
            lambda: disk_usage(home, enough_bytes=limit), limiter=self._limiter
        )
        if box.gone.is_set() or box.is_ours:
            return
        box.disk_bytes = used
        await self._roster.read(box)
        if used > limit:
            box.end(over_disk(box.box_id, used_bytes=used, limit_bytes=limit))
