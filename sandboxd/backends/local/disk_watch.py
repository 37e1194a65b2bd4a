"""Measures what boxes write to disk, and ends those that are over their limit.

No quota can be had from an overlay on a common file system, so this limit is `watched`: a box may
be over it for about two rounds. A box that used no processor time wrote nothing, and is not
measured again.
"""

from __future__ import annotations

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.local.boxes import BoxShelf
from sandboxd.backends.local.living import LivingBox, Roster
from sandboxd.backends.parts.deaths import over_disk
from sandboxd.kernel.cgroups import Cgroups
from sandboxd.kernel.trees import disk_usage

# Boxes are looked at in turns, so that a thousand of them do not keep a core busy all at once.
_TURNS = 10


class DiskWatch:
    """Goes round the living boxes, one at a time."""

    def __init__(
        self, roster: Roster, shelf: BoxShelf, cgroups: Cgroups, *, every_s: float
    ) -> None:
        self._roster = roster
        self._shelf = shelf
        self._cgroups = cgroups
        self._every_s = every_s
        self._limiter = CapacityLimiter(1)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for turn in range(_TURNS):
                await anyio.sleep(self._every_s / _TURNS)
                # By name, so that a box keeps its turn while others come and go.
                boxes = [box for box in self._roster.living() if hash(box.box_id) % _TURNS == turn]
                if boxes:
                    await self._look_at(boxes)

    async def _look_at(self, boxes: list[LivingBox]) -> None:
        ran = await to_thread.run_sync(
            lambda: [(box, self._cgroups.cpu_used(box.box_id)) for box in boxes],
            limiter=self._limiter,
        )
        for box, cpu_used in ran:
            if box.gone.is_set() or box.is_ours:
                continue
            if cpu_used is not None and cpu_used == box.cpu_measured:
                continue
            if box.rests:
                box.rests = False
                continue
            before = box.disk_bytes
            await self.measure(box)
            # As it stood before: what is written meanwhile is for the next round.
            box.cpu_measured = cpu_used
            box.rests = cpu_used is None and box.disk_bytes == before

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
