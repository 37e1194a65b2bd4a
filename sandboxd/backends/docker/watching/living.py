"""The boxes that live: each is watched by a pidfd, and each death is told once, with its cause.

Knows processes and records; what the engine says is brought here by others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from sandboxd.backends.docker.records import BoxRecord
from sandboxd.backends.docker.watching.written import Written
from sandboxd.backends.parts.oom_counts import OomCounts
from sandboxd.backends.parts.roll import Roll
from sandboxd.backends.protocol import Death
from sandboxd.linux.group_readings import Group, GroupReadings
from sandboxd.linux.processes import ended, has_ended, is_ending, kill

_MAX_SIGNALS = 16  # remembered of one box


@dataclass(slots=True, eq=False)
class EngineWord:
    """What the engine said of a container. dead: it ended, or is gone."""

    signals: list[int] = field(default_factory=list)
    dead: anyio.Event = field(default_factory=anyio.Event)
    removed: bool = False

    def asked(self, signal: int) -> None:
        """Somebody had it send a signal."""
        self.signals = [*self.signals[1 - _MAX_SIGNALS :], signal]


@dataclass(slots=True, eq=False, kw_only=True)
class LivingBox:
    """A box under watch. `pidfd` is its first process's, open until `gone`; None where the
    engine's processes are out of sight.

    group: its control group; None where it cannot be seen.
    verdict: why we ended it ourselves; told instead of what its remains say.
    is_ours: being removed at a caller's wish, which is no death to tell.
    written: where it writes, once that was asked for.
    cpu_measured: the processor time it had used when its disk was last measured.
    rests: left out of the next round, where that time is not known.
    ooms: what its group counted while it lived. last: what it said at the last look.
    """

    record: BoxRecord
    pidfd: int | None
    group: Group | None
    word: EngineWord = field(default_factory=EngineWord)
    gone: anyio.Event = field(default_factory=anyio.Event)
    death: Death | None = None
    verdict: Death | None = None
    is_ours: bool = False
    disk_bytes: int | None = None
    written: Written | None = None
    cpu_measured: int | None = None
    rests: bool = False
    ooms: OomCounts = field(default_factory=OomCounts)
    last: GroupReadings = field(default_factory=GroupReadings)

    @property
    def box_id(self) -> str:
        """Its id."""
        return self.record.box_id

    @property
    def is_dead(self) -> bool:
        """Whether it is known to be dead, its death examined or not."""
        if self.gone.is_set():
            return True
        return self.word.dead.is_set() if self.pidfd is None else has_ended(self.pidfd)

    async def read_group(self) -> GroupReadings:
        """What its control group says, noted for the day it dies."""
        read, was_ending = await to_thread.run_sync(self._look)
        if read.oom_kills is not None:
            self.last = read
            if not (was_ending or self.is_dead):
                self.ooms.note(read, at=anyio.current_time())
        return read

    def _look(self) -> tuple[GroupReadings, bool]:
        """And whether it was at its end just after, which is told when all in it is gone."""
        read = GroupReadings() if self.group is None else self.group.read()
        process = self.record.process
        return read, process is not None and is_ending(process.pid)

    def kill(self) -> bool:
        """Kill its first process; False where only the engine can."""
        if self.gone.is_set():
            return True
        if self.pidfd is None:
            return False
        try:
            kill(self.pidfd)
        except PermissionError:
            return False
        return True


Examine = Callable[[BoxRecord, LivingBox | None], Awaitable[Death]]
FindGroup = Callable[[BoxRecord], Group | None]


class Roster(Roll[LivingBox]):
    """Who lives, and who wants to know of deaths."""

    def __init__(self, tasks: TaskGroup, *, examine: Examine, find_group: FindGroup) -> None:
        """examine: says why a dead box died."""
        super().__init__(tasks)
        self._examine = examine
        self._find_group = find_group

    def add(self, record: BoxRecord, pidfd: int | None) -> LivingBox:
        """Watch a box from now on. Takes the pidfd over."""
        box = LivingBox(record=record, pidfd=pidfd, group=self._find_group(record))
        return self._enter(box)

    def forget(self, box_id: str) -> None:
        """Let go of a box that was removed."""
        box = self._strike(box_id)
        if box is not None:
            box.word.dead.set()  # ends the watch of one without pidfd

    async def _until_dead(self, box: LivingBox) -> None:
        if box.pidfd is None:
            await box.word.dead.wait()
        else:
            await ended(box.pidfd)

    async def _cause(self, box: LivingBox) -> Death:
        return await self._examine(box.record, box)
