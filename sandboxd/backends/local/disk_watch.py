"""Measures what boxes write to disk, and ends those that are over their limit.

No quota can be had from an overlay on a common file system, so this limit is `watched`: a box may
be over it for about two rounds. A box that used no processor time wrote nothing, and is not
measured again.
"""

from __future__ import annotations

from anyio import CapacityLimiter, to_thread

from sandboxd.backends.local.boxes import BoxShelf
from sandboxd.backends.local.living import LivingBox, Roster
from sandboxd.backends.local.written import written_bytes
from sandboxd.backends.parts.deaths import over_disk
from sandboxd.backends.parts.disk_rounds import DiskRounds
from sandboxd.linux.cgroups import Cgroups
from sandboxd.linux.processes import family


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
        rounds = DiskRounds(
            living=self._roster.living,
            cpu_used=lambda box: self._cgroups.cpu_used(box.box_id),
            measure=self._measured,
            every_s=self._every_s,
            limiter=self._limiter,
        )
        await rounds.run()

    async def _measured(self, box: LivingBox) -> bool:
        await self.measure(box)
        return True

    async def measure(self, box: LivingBox) -> None:
        """Take one reading; over the limit the box ends with it as evidence."""
        limit = box.record.disk_limit_bytes
        home = self._shelf.places(box.box_id).home
        used = await to_thread.run_sync(
            lambda: written_bytes(
                home, first=box.pid, pids=self._processes(box), enough_bytes=limit
            ),
            limiter=self._limiter,
        )
        if box.gone.is_set() or box.is_ours:
            return
        box.disk_bytes = used
        await self._roster.read(box)
        if used > limit:
            box.end(over_disk(box.box_id, used_bytes=used, limit_bytes=limit))

    def _processes(self, box: LivingBox) -> list[int]:
        return self._cgroups.processes(box.box_id) or family(box.pid)
