"""Whom the kernel killed for want of memory, and whose memory it was: what its log says of it.

The log outlives the group that the process was in, which whoever made it removes within
milliseconds, and it names the victim, where a group's counters only count. It says nothing where
it may not be read (a plain user; a container), or where so many were killed at once that the
kernel stopped telling of each.

A line is `oom-kill:constraint=…,oom_memcg=/GROUP,task_memcg=/GROUP,task=NAME,pid=N,uid=N`, with
`global_oom` in the place of `oom_memcg` where all of the machine's was used up (mm/oom_kill.c of
Linux, from 4.19 on). Names of processes are theirs to choose, so it is read from the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

_DEVICE = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel's own bound of one
_KILL = re.compile(
    r"oom-kill:constraint=.*,(?:oom_memcg=(?P<short>/.*)|global_oom),"
    r"task_memcg=(?P<group>/.*),task=.*,pid=(?P<pid>\d+),uid=\d+"
)


def killed_at_own_limit(pid: int, group: str) -> bool | None:
    """Whether a process of this boot was killed for want of memory at its own group's limit;
    False: for want around it. None where the log says nothing of it. Blocks for milliseconds.

    pid: as the machine counts. group: a name that stands in its group's path and in no other's.
    """
    with suppress(OSError):
        return find_kill(_records(), pid, group)
    return None


def find_kill(records: Iterable[str], pid: int, group: str) -> bool | None:
    """The same of those records, of which the last counts."""
    found = None
    for record in records:
        match = _KILL.search(record)
        if match and int(match["pid"]) == pid and group in match["group"]:
            found = group in (match["short"] or "")
    return found


def _records() -> Iterator[str]:
    """Those that the kernel still has, the oldest first."""
    device = os.open(_DEVICE, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            with suppress(BrokenPipeError):  # it lost some that we had not read
                yield os.read(device, _RECORD_BYTES).split(b"\n", 1)[0].decode(errors="replace")
    except BlockingIOError:  # no more for now
        return
    finally:
        os.close(device)
