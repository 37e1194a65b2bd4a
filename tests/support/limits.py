"""What a sandbox may use at most, read back inside before anything hostile runs there."""

from __future__ import annotations

import pytest

from sandboxd.linux.cgroups import GUEST_PIDS

READ_LIMITS = (
    "cd /sys/fs/cgroup; cat pids/pids.max memory/memory.limit_in_bytes 2>/dev/null"
    " || cat pids.max memory.max"
)


def assert_held(read: str, *, pids: int | None, memory_mb: int) -> None:
    """That the kernel holds both for the sandbox as a whole. read: what READ_LIMITS printed; pids:
    None where the backend declares that it keeps no such limit.

    Skips where it does so for each command alone, as for a daemon without control groups.
    """
    if not read.strip():
        pytest.skip("no control groups here: nothing holds what the sandbox takes in all")
    held_pids, held_memory = read.split()
    assert pids is None or int(held_pids) == pids + GUEST_PIDS
    assert int(held_memory) == memory_mb << 20
