"""What a cluster of the tests leaves on the machine, found and removed.

Processes, mounts and folders are found by the cluster's own directory; its bridge, its rules of the
packet filter and its control groups by their names. `python -m tests.support.cluster_traces` says
what is there of any cluster that nobody takes down, and fails if there is something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.engine_traces import mounts_below, remove_cgroups

PREFIX = "sbx-k8s-"
_BRIDGE = "k8sbr0"
_GROUPS = "kubepods"
_STOP_S = 180


def traces(directory: Path) -> list[str]:
    """What is left of the cluster in that directory, in words."""
    left = [f"process {pid}" for pid in _processes(directory)]
    left += [f"mount {place}" for place in mounts_below(directory)]
    left += [f"directory {directory}"] if directory.exists() else []
    return left + _named_traces()


def _named_traces() -> list[str]:
    left = [f"bridge {_BRIDGE}"] if Path("/sys/class/net", _BRIDGE).exists() else []
    done = subprocess.run(["iptables", "-w", "-S"], check=False, capture_output=True, text=True)
    rules = [line for line in done.stdout.splitlines() if _BRIDGE in line or "KUBE-" in line]
    groups = [group for group in Path("/sys/fs/cgroup").glob(f"*/{_GROUPS}") if group.is_dir()]
    return left + [f"rule {rule}" for rule in rules] + [f"cgroup {group}" for group in groups]


def take_down(directory: Path, scripts: Path) -> None:
    """End all that the cluster started, and remove all it made."""
    environ = {**os.environ, "K8S": str(directory)}
    with tempfile.TemporaryFile() as log:
        subprocess.run(
            ["bash", str(scripts / "stop.sh"), "--wipe"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_STOP_S,
            check=False,
        )
    for place in reversed(mounts_below(directory)):
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    remove_cgroups(_GROUPS)
    shutil.rmtree(directory, ignore_errors=True)


def orphans() -> list[Path]:
    """The directories of clusters that were not taken down."""
    return sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def _processes(directory: Path) -> list[int]:
    """Those whose command names the directory, but ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"{directory}/" in words:
                found.append(int(entry.name))
    return found


def main() -> int:
    """Look at the whole machine. 1 if something of a cluster is left."""
    left = [what for place in orphans() for what in traces(place)] or _named_traces()
    for what in left:
        print(f"left of a cluster of the tests: {what}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
