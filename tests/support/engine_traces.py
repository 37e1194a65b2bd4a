"""What an engine leaves on the machine, found and removed: processes, mounts, control groups.

Everything is found by the engine's own directory, which no other process on the machine names as
an engine would: so nothing of anybody else is ever touched. `python -m tests.support.engine_traces`
says what is there of any engine of the tests that nobody takes down, and fails if there is
something.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "sbx-eng-"
CGROUP = "sandboxd-test-"
_OWNER = "owner"
_CGROUPS = Path("/sys/fs/cgroup")
_SHIM_SOCKETS = "/run/containerd/s/"
_PROGRAMS = ("dockerd", "containerd", "runc", "docker-proxy", "docker-init")
_END_S = 10.0
_POLL_S = 0.02


def cgroup_name(directory: Path) -> str:
    """Of the group that all containers' groups of the engine in that directory lie in."""
    return f"{CGROUP}{directory.name}"


def traces(directory: Path) -> list[str]:
    """What is left of the engine in that directory, in words."""
    left = [f"process {pid}" for pid in engine_processes(directory)]
    left += [f"mount {place}" for place in mounts_below(directory)]
    left += [f"cgroup {group}" for group in cgroups(cgroup_name(directory))]
    return left + ([f"directory {directory}"] if directory.exists() else [])


def take_down(directory: Path) -> None:
    """End all that the engine started, and remove all it made."""
    cut_off(directory)
    shutil.rmtree(directory, ignore_errors=True)


def cut_off(directory: Path) -> None:
    """End all that the engine started, with its mounts and its groups; its files stay."""
    end_processes(directory)
    unmount_all(directory)
    remove_cgroups(cgroup_name(directory))


def end_processes(directory: Path) -> None:
    """End what the engine started: containers, their shims, containerd. Waits for their ends."""
    deadline = time.monotonic() + _END_S
    while pids := _with_children(engine_processes(directory)):
        for pid in pids:
            for socket in _shim_sockets(pid):
                socket.unlink(missing_ok=True)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)


def engine_processes(directory: Path) -> list[int]:
    """The engine's own programs that name its directory in their command."""
    return [
        pid
        for pid, words in _commands()
        if Path(words[0]).name.startswith(_PROGRAMS)
        and any(str(directory) in word for word in words[1:])
    ]


def unmount_all(directory: Path) -> None:
    """Detach every mount below the directory, the innermost first."""
    for place in reversed(mounts_below(directory)):
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def mounts_below(directory: Path) -> list[str]:
    """In the order in which they were mounted."""
    inside = f"{directory}/"
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    return [place for line in lines if (place := line.split()[4]).startswith(inside)]


def remove_cgroups(name: str) -> None:
    """Remove the groups of that name in every hierarchy, with the groups inside."""
    for group in cgroups(name):
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106 - as os.walk gives it


def cgroups(name: str) -> list[Path]:
    """At the root of version 2, or of each hierarchy of version 1."""
    return [path for pattern in (name, f"*/{name}") for path in _CGROUPS.glob(pattern)]


def _shim_sockets(pid: int) -> list[Path]:
    """What a shim listens on, in a folder that all engines share; one that is killed leaves it."""
    with suppress(OSError):
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        lines = Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()
        fields = [line.split() for line in lines]
        return [
            Path(field[7])
            for field in fields
            if len(field) > 7 and field[6] in inodes and field[7].startswith(_SHIM_SOCKETS)
        ]
    return []


def _with_children(roots: list[int]) -> list[int]:
    """The processes and all their descendants, parents first, so that no parent starts new ones."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = list(roots)
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in found]
    return found


def _commands() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), words


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry.name), int(fields[1])


def orphans() -> list[Path]:
    """The directories of engines whose owner ended without taking them down."""
    places = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    return sorted(place for place in places if not _is_owned(place))


def claim(directory: Path) -> None:
    """Write down that this process takes the engine down."""
    (directory / _OWNER).write_text(f"{os.getpid()}")


def _is_owned(directory: Path) -> bool:
    try:
        owner = (directory / _OWNER).read_text()
    except OSError:
        return False
    return Path("/proc", owner or "none").exists()


def main() -> int:
    """Look at the whole machine. 1 if an engine is left that nobody takes down."""
    left = [what for place in orphans() for what in traces(place)]
    for what in left:
        print(f"left of an engine of the tests: {what}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
