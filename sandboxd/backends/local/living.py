"""The boxes that live: each is watched by a pidfd, and each death is told once, with its cause.

Knows processes, control groups and records; does not make or remove boxes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from sandboxd.backends.local.boxes import BoxRecord, BoxShelf
from sandboxd.backends.local.launching.launcher import OuterBwrap, read_complaints
from sandboxd.backends.parts.deaths import Evidence, judge, rebooted
from sandboxd.backends.parts.kernel_word import at_own_limit
from sandboxd.backends.parts.oom_counts import OomCounts
from sandboxd.backends.parts.roll import Roll
from sandboxd.backends.protocol import Death, Readings
from sandboxd.linux.cgroups import Cgroups
from sandboxd.linux.processes import (
    boot_id,
    ended,
    has_ended,
    is_ending,
    kill,
    open_pidfd,
)

_REPORT_PATIENCE_S = 2  # for bubblewrap to write down the exit code, after the death


@dataclass(slots=True, eq=False, kw_only=True)
class LivingBox:
    """A box under watch. `pidfd` is its first process's, open until `gone`.

    verdict: why we ended it ourselves; told instead of what its remains say.
    is_ours: being removed at a caller's wish, which is no death to tell.
    cpu_measured: the processor time it had used when its disk was last measured.
    rests: left out of the next round, where that time is not known.
    ooms: what its group counted while it lived.
    """

    record: BoxRecord
    pidfd: int
    outer: OuterBwrap | None = None
    gone: anyio.Event = field(default_factory=anyio.Event)
    death: Death | None = None
    verdict: Death | None = None
    is_ours: bool = False
    disk_bytes: int | None = None
    cpu_measured: int | None = None
    rests: bool = False
    ooms: OomCounts = field(default_factory=OomCounts)

    @property
    def box_id(self) -> str:
        """Its id."""
        return self.record.box_id

    @property
    def pid(self) -> int:
        """Its first process, as the host counts."""
        assert self.record.process is not None
        return self.record.process.pid

    def end(self, verdict: Death | None = None) -> None:
        """Kill it, for a reason of ours. The first reason stands."""
        if not self.gone.is_set():
            self.verdict = self.verdict or verdict
            kill(self.pidfd)


class Roster(Roll[LivingBox]):
    """Who lives, and who wants to know of deaths."""

    def __init__(self, tasks: TaskGroup, shelf: BoxShelf, cgroups: Cgroups) -> None:
        super().__init__(tasks)
        self._shelf = shelf
        self._cgroups = cgroups

    def add(self, record: BoxRecord, pidfd: int, outer: OuterBwrap | None = None) -> LivingBox:
        """Watch a box from now on. Takes the pidfd over."""
        box = LivingBox(record=record, pidfd=pidfd, outer=outer)
        return self._enter(box)

    def adopt(self, record: BoxRecord) -> LivingBox | None:
        """Watch a box that another daemon made; None if it is dead."""
        pidfd = open_pidfd(record.process) if record.process else None
        if pidfd is None:
            return None
        if has_ended(pidfd):
            os.close(pidfd)
            return None
        return self.add(record, pidfd)

    def forget(self, box_id: str) -> None:
        """Let go of a box that was removed."""
        self._strike(box_id)

    async def _until_dead(self, box: LivingBox) -> None:
        await ended(box.pidfd)
        await reap(box.outer)

    async def _cause(self, box: LivingBox) -> Death:
        return await self.examine(box.record, box)

    async def examine(self, record: BoxRecord, box: LivingBox | None = None) -> Death:
        """Why a dead box died."""
        if box is not None and box.verdict is not None:
            return box.verdict
        if record.process is not None and record.process.boot_id != boot_id():
            return rebooted(record.box_id)
        ooms = OomCounts() if box is None else box.ooms
        kills_before, hits_before = ooms.before(end=anyio.current_time())
        exit_code = await self._exit_code(record.box_id)
        log_says = await at_own_limit(record.process, record.box_id, exit_code=exit_code)
        readings = await to_thread.run_sync(self._cgroups.read, record.box_id)
        words = read_complaints(self._shelf.places(record.box_id).complaints)
        return judge(
            Evidence(
                box_id=record.box_id,
                exit_code=exit_code,
                at_own_limit=log_says,
                oom_kills=readings.oom_kills,
                oom_kills_before=kills_before,
                limit_hits=readings.limit_hits,
                limit_hits_before=hits_before,
                memory_peak_bytes=readings.memory_peak_bytes,
                memory_limit_bytes=record.memory_limit_bytes,
                words=words,
            )
        )

    async def _exit_code(self, box_id: str) -> int | None:
        """What bubblewrap wrote down; it does so a moment after the death."""
        with anyio.move_on_after(_REPORT_PATIENCE_S):
            # A file tells nobody that it grew
            while (code := self._shelf.status(box_id).exit_code) is None:  # noqa: ASYNC110
                await anyio.sleep(0.002)
            return code
        return None

    async def read(self, box: LivingBox) -> Readings:
        """What a box uses now."""
        group = await to_thread.run_sync(self._cgroups.read, box.box_id)
        if not _at_its_end(box):
            box.ooms.note(group, at=anyio.current_time())
        return Readings(
            cpu_s=group.cpu_s,
            memory_bytes=group.memory_bytes,
            memory_peak_bytes=group.memory_peak_bytes,
            disk_bytes=box.disk_bytes,
            oom_kills=group.oom_kills,
        )


def _at_its_end(box: LivingBox) -> bool:
    """Whether its end has begun, which is told only when all in it is gone."""
    process = box.record.process
    if box.gone.is_set() or has_ended(box.pidfd):
        return True
    return process is not None and is_ending(process.pid)


async def reap(outer: OuterBwrap | None) -> None:
    """Collect the outer bubblewrap, a child of ours, which ends with its box. Bounded."""
    if outer is None or outer.poll() is not None:
        return
    pidfd = os.pidfd_open(outer.pid)
    try:
        with anyio.move_on_after(_REPORT_PATIENCE_S):
            await ended(pidfd)
    finally:
        os.close(pidfd)
        outer.poll()
