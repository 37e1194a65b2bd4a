"""What processes use, from /proc: memory in MB (10^6 bytes), processor time in seconds."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory now."""
    return _status_kb(pid, "VmRSS") * 1024 / 1e6


def reset_peak(pid: int) -> None:
    """Have the kernel forget the peak of the resident memory."""
    (_PROC / str(pid) / "clear_refs").write_text("5")


def peak_rss_mb(pid: int) -> float:
    """The peak of the resident memory since `reset_peak`."""
    return _status_kb(pid, "VmHWM") * 1024 / 1e6


def cpu_s(pids: list[int]) -> float:
    """Processor time of these processes so far, together; of those that are gone nothing."""
    return sum(_cpu_ticks(pid) for pid in pids) / _TICKS_PER_S


def descendants(root: int) -> list[int]:
    """All processes below `root`."""
    children = defaultdict(list)
    for pid, (_, parent) in _all_processes().items():
        children[parent].append(pid)
    found, waiting = [], [root]
    while waiting:
        below = children[waiting.pop()]
        found += below
        waiting += below
    return found


def named(pids: list[int], name: str) -> list[int]:
    """Those of `pids` whose program has this name."""
    known = _all_processes()
    return [pid for pid in pids if pid in known and known[pid][0] == name]


def _all_processes() -> dict[int, tuple[str, int]]:
    """Name and parent of every process."""
    found = {}
    for entry in _PROC.iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields is not None:
            found[int(entry.name)] = (fields[0], int(fields[2]))
    return found


def _stat(pid: int) -> list[str] | None:
    """The program's name, then the fields after it; None if the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    return [name, *text[text.rindex(")") + 2 :].split()]


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[12]) + int(fields[13])


def _status_kb(pid: int, name: str) -> int:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
