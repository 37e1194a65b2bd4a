"""The processes of boxes as this machine sees them, so that they can be upset from outside. Each is
held by a pidfd first and then looked at, so that nothing of anybody else is ever touched.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults.clients import NAME

_SHIM = b"sandbox-shim"


@dataclass(frozen=True, slots=True)
class Process:
    """One that lives, or has ended and cannot be taken for another. home: its pid namespace."""

    pid: int
    home: str
    _pidfd: int

    def send(self, number: signal.Signals) -> bool:
        """False if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
            return True
        return False


@contextmanager
def held(pid: int, *, is_it: Callable[[int], bool]) -> Iterator[Process | None]:
    """The process of that number, if it is the one that is meant. None too without a number."""
    pidfd = -1
    with suppress(OSError):
        pidfd = os.pidfd_open(pid) if pid > 1 else -1
    try:
        yield Process(pid, _home(pid), pidfd) if pidfd >= 0 and _is(pid, is_it) else None
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _is(pid: int, is_it: Callable[[int], bool]) -> bool:
    with suppress(OSError):
        return is_it(pid)
    return False


def _home(pid: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def parent_of(pid: int) -> int:
    """Raises OSError for one that is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def words_of(pid: int) -> bytes:
    """Its command line. Raises OSError for one that is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def commands_in(home: str) -> dict[int, str]:
    """The callers' commands that run in a namespace: their names by their processes."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            named = re.search(NAME, words_of(pid))
            if named is not None and home and _home(pid) == home:
                found[pid] = named[0].decode()
    return found


def kill_command(pid: int, name: str, *, shim: bool) -> bool:
    """End a caller's command, or the shim above it. False if there is none."""
    with suppress(OSError):
        target = parent_of(pid) if shim else pid
        with held(target, is_it=lambda it: _is_part(it, pid, name, shim=shim)) as process:
            return process is not None and process.send(signal.SIGKILL)
    return False


def _is_part(target: int, pid: int, name: str, *, shim: bool) -> bool:
    if name.encode() not in words_of(pid):
        return False
    comm = Path(f"/proc/{target}/comm").read_bytes().strip()
    return parent_of(pid) == target and comm == _SHIM if shim else target == pid
