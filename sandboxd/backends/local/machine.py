"""How much of everything this machine has in all. Blocking, and cheap."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sandboxd.model.template import Resources

_MIB = 1 << 20


def whole_machine(state_dir: Path) -> Resources:
    """Its cores, memory and processes, and the disk below `state_dir`."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Resources(
        cpu=float(os.cpu_count() or 1),
        memory_mb=memory // _MIB,
        pids=int(Path("/proc/sys/kernel/pid_max").read_text()),
        disk_mb=shutil.disk_usage(state_dir).total // _MIB,
    )
