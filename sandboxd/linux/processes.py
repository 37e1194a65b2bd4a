"""Which process is which: a pid with its start time, and pidfds. Knows no boxes."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

_ON_ITS_WAY_OUT = 0x4 | 0x400  # PF_EXITING, PF_SIGNALED
_KILL_BIT = 1 << (signal.SIGKILL - 1)
_LARGEST_FAMILY = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process that cannot be mistaken for another one with the same pid.

    start_ticks: clock ticks after boot. pid_ns: inode of its pid namespace. boot_id: of the kernel,
    since ticks and inodes begin anew with each boot.
    """

    pid: int
    start_ticks: int
    pid_ns: int
    boot_id: str

    def facts(self) -> dict[str, str | int]:
        """As strings and numbers, to be stored."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, str | int]) -> ProcessMark | None:
        """The mark among what was stored; None where there is none."""
        try:
            return cls(
                pid=int(facts["pid"]),
                start_ticks=int(facts["start_ticks"]),
                pid_ns=int(facts["pid_ns"]),
                boot_id=str(facts["boot_id"]),
            )
        except (KeyError, ValueError):
            return None


def boot_id() -> str:
    """The kernel's own name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def mark_process(pid: int, *, pid_ns: int) -> ProcessMark | None:
    """The mark of a living process, None if there is none."""
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    return ProcessMark(pid=pid, start_ticks=ticks, pid_ns=pid_ns, boot_id=boot_id())


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may itself hold spaces and brackets; the 22nd field is the start.
    return int(text.rpartition(b")")[2].split()[19])


def pid_namespace(pid: int) -> int | None:
    """The inode of a process's pid namespace; None if it is gone, or hidden from us."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None


def pidfd_of(pid: int) -> int | None:
    """A pidfd of the process that has this number now; None if none has."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # Of a number that a thread was given since, kernels say one of the latter two.
        if error.errno in {errno.ESRCH, errno.ENOENT, errno.EINVAL}:
            return None
        raise


def open_pidfd(mark: ProcessMark) -> int | None:
    """A pidfd of exactly that process, dead but unreaped ones included; None if it is gone."""
    if mark.boot_id != boot_id():
        return None
    fd = pidfd_of(mark.pid)
    if fd is None:
        return None
    # Only after the pidfd holds the pid can it not be given to another process.
    seen = pid_namespace(mark.pid)
    if start_ticks(mark.pid) == mark.start_ticks and seen in {None, mark.pid_ns}:
        return fd
    os.close(fd)
    return None


def kill(pidfd: int) -> None:
    """Send SIGKILL; a process that is gone already is success."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


async def ended(pidfd: int) -> None:
    """Wait until the process is dead. For a namespace's first process: until all in it are.

    The kernel reports a namespace's first process dead only after it has killed and reaped the
    rest.
    """
    await anyio.wait_readable(pidfd)


def has_ended(pidfd: int) -> bool:
    """Whether the process is dead, without waiting and whether or not it was reaped."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def is_ending(pid: int) -> bool:
    """Whether a process is gone, on its way out, or has a SIGKILL coming that nothing holds up.

    A namespace's first process may be long on its way: it waits for all the others.
    """
    try:
        # In this order: it is marked as signalled after the signal is no longer pending.
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        flags = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[6])
    except OSError:
        return True
    pending = 0
    for line in status.splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")):
            pending |= int(line.split()[1], 16)
    return bool(flags & _ON_ITS_WAY_OUT or pending & _KILL_BIT)


def family(pid: int) -> list[int]:
    """A process and all that come from it, as far as they are seen while they come and go.

    All that a pid namespace holds comes from its first process, orphans too.
    """
    found = [pid]
    for each in found:
        if len(found) > _LARGEST_FAMILY:
            break
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                with suppress(OSError):
                    found += map(int, (task / "children").read_text().split())
    return found


def pids_naming(*texts: str) -> list[int]:
    """Processes whose command line has every one of those texts in it."""
    wanted = [os.fsencode(text) for text in texts]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if all(text in words for text in wanted):
                found.append(int(entry.name))
    return found
