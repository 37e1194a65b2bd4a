"""Measures what boxes write to disk, and ends those that are over their limit.

Engines hold no quota on a common file system, so this limit is `watched`: a box may be over it for
about two rounds. To measure is dear, so boxes come one at a time, and one that used no processor
time wrote nothing and is left alone. What is out of sight the engine is asked for.
"""

from __future__ import annotations

from typing import Any

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.watching.living import LivingBox, Roster
from sandboxd.backends.docker.watching.written import Written, written_by
from sandboxd.backends.parts.deaths import over_disk
from sandboxd.backends.parts.disk_rounds import DiskRounds
from sandboxd.errors import SandboxdError

log = structlog.get_logger(__name__)

_MEASURE_S = 60.0


class DiskWatch:
    """Goes round the living boxes, one at a time."""

    def __init__(self, engine: Engine, roster: Roster, places: Places, *, every_s: float) -> None:
        self._engine = engine.lane(1)
        self._roster = roster
        self._places = places
        self._every_s = every_s
        self._limiter = CapacityLimiter(1)

    async def run(self) -> None:
        """Until cancelled."""
        rounds = DiskRounds(
            living=self._roster.living,
            cpu_used=_cpu_used,
            measure=self._try_to_measure,
            every_s=self._every_s,
            limiter=self._limiter,
        )
        await rounds.run()

    async def _try_to_measure(self, box: LivingBox) -> bool:
        try:
            with anyio.fail_after(_MEASURE_S):
                await self.measure(box)
        except (EngineRefused, SandboxdError, OSError) as error:  # a deadline among them
            log.debug("disk.unmeasured", box_id=box.box_id, error=str(error) or "timed out")
            return False
        return True

    async def measure(self, box: LivingBox) -> None:
        """Take one reading; over the limit the box ends with it as evidence.

        Raises as engine calls do.
        """
        limit = box.record.disk_limit_bytes
        written = await self._written(box)
        used = await to_thread.run_sync(_measure, box, written, limit, limiter=self._limiter)
        if written.layer is None:
            used += await self._by_engine(box)
        if box.gone.is_set() or box.is_ours:
            return
        box.disk_bytes = used
        await box.read_group()
        if used > limit and not box.is_dead:
            box.verdict = box.verdict or over_disk(box.box_id, used_bytes=used, limit_bytes=limit)
            if not box.kill():
                await self._engine.call(self._engine.api.kill, box.record.container_id)

    async def _written(self, box: LivingBox) -> Written:
        """Where it writes, which stays the same as long as it lives."""
        process = box.record.process
        if box.written is None and process is not None:
            facts: dict[str, Any] = await self._engine.call(
                self._engine.api.inspect_container, box.record.container_id
            )
            shared = self._places.shared(box.box_id)
            box.written = await to_thread.run_sync(
                lambda: written_by(facts, process.pid, shared=shared), limiter=self._limiter
            )
        return box.written or Written()

    async def _by_engine(self, box: LivingBox) -> int:
        """What the engine says was written over the image."""
        found: list[dict[str, Any]] = await self._engine.call(
            self._engine.api.containers, size=True, filters={"id": [box.record.container_id]}
        )
        return int(found[0].get("SizeRw") or 0) if found else 0


def _measure(box: LivingBox, written: Written, limit: int) -> int:
    pids = [] if box.group is None else box.group.processes()
    return written.measure(pids, enough_bytes=limit)


def _cpu_used(box: LivingBox) -> int | None:
    return None if box.group is None else box.group.cpu_used()
