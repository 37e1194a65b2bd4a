"""What control groups say of their use, and which groups a process is in. Version 1 and 2.

Knows no limits and makes no group. Blocking file access; call from a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReadings:
    """What a group used so far and uses now; None where its version does not say.

    oom_kills: of its processes, whoever's memory was short. limit_hits: times that it stood at its
    own limit with nothing left to give back.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    oom_kills: int | None = None
    limit_hits: int | None = None


class Group(Protocol):
    """The group of one box, whatever its version. What is gone reads as None."""

    def processes(self) -> list[int]:
        """Who is in it, as we count; empty where that cannot be seen."""
        ...

    def read(self) -> GroupReadings:
        """Never raises for a group that is gone: all None."""
        ...

    def cpu_used(self) -> int | None:
        """Processor time so far, in the version's own unit, to be compared; None if not known."""
        ...


@dataclass(frozen=True, slots=True)
class GroupV1:
    """A group's directories in the hierarchies that count."""

    memory: Path
    cpuacct: Path

    def processes(self) -> list[int]:
        """By the hierarchy of memory."""
        return _processes(self.memory)

    def read(self) -> GroupReadings:
        """From cpuacct and memory."""
        cpu_ns = self.cpu_used()
        return GroupReadings(
            cpu_s=None if cpu_ns is None else cpu_ns / 1e9,
            memory_bytes=_number(self.memory / "memory.usage_in_bytes"),
            memory_peak_bytes=_number(self.memory / "memory.max_usage_in_bytes"),
            oom_kills=_keyed(self.memory / "memory.oom_control", "oom_kill"),
        )

    def cpu_used(self) -> int | None:
        """In ns."""
        return _number(self.cpuacct / "cpuacct.usage")


@dataclass(frozen=True, slots=True)
class GroupV2:
    """A group's one directory."""

    path: Path

    def processes(self) -> list[int]:
        """Of the group itself."""
        return _processes(self.path)

    def read(self) -> GroupReadings:
        """From the group's own files; the peak is there from Linux 5.19 on."""
        cpu_us = self.cpu_used()
        return GroupReadings(
            cpu_s=None if cpu_us is None else cpu_us / 1e6,
            memory_bytes=_number(self.path / "memory.current"),
            memory_peak_bytes=_number(self.path / "memory.peak"),
            oom_kills=_keyed(self.path / "memory.events", "oom_kill"),
            limit_hits=_keyed(self.path / "memory.events", "oom"),
        )

    def cpu_used(self) -> int | None:
        """In µs."""
        return _keyed(self.path / "cpu.stat", "usage_usec")


def mounted_hierarchies(mountinfo: str) -> dict[str, Path]:
    """Controller to mount point; the unified hierarchy under the empty name."""
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()[:3]
        where = Path(left.split()[4])
        if kind == "cgroup2":
            found.setdefault("", where)
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, where)
    return found


def group_of(pid: int, hierarchies: Mapping[str, Path]) -> Group | None:
    """The group that somebody else put a process in; None if it cannot be seen from here.

    The top of a hierarchy is no answer: it counts the whole machine.
    """
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return None
    places: dict[str, Path] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if path != "/" and name in hierarchies:
                places[name] = hierarchies[name] / path.lstrip("/")
    if {"memory", "cpuacct"} <= places.keys():
        group: Group = GroupV1(places["memory"], places["cpuacct"])
        return group if places["memory"].is_dir() else None
    if "" in places and (places[""] / "memory.current").exists():
        return GroupV2(places[""])
    return None


def _processes(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _keyed(path: Path, key: str) -> int | None:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return None
