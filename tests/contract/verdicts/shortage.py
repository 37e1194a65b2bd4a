"""Control groups above a sandbox's own, made short for a while: what a host that is short looks
like from below, and harms nobody but the tests' own sandboxes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.engine_traces import CGROUP

_MOUNTS = Path("/sys/fs/cgroup")
_OURS = ("sandboxd-", CGROUP)


def group_above(pid: int, controller: str) -> Path:
    """The group above the one that the first process of a sandbox is in. Skips without one that
    is an installation's, or a test engine's, own.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may change a control group's limits")
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            above = (_MOUNTS / controller / path.lstrip("/")).parent
            if above.name.startswith(_OURS) and above.is_dir():
                return above
    pytest.skip(f"no group of version 1 above the sandbox's own for {controller}")


@contextmanager
def limited(above: Path, name: str, value: int) -> Iterator[None]:
    """That limit on the group, which is read back first; the old one afterwards."""
    file = above / name
    before = file.read_text().strip()
    file.write_text(str(value))
    try:
        assert abs(int(file.read_text()) - value) < 4096
        yield
    finally:
        file.write_text("-1" if before.isdigit() and int(before) >= 1 << 60 else before)


def number(above: Path, name: str) -> int:
    """What the group says."""
    return int((above / name).read_text())
