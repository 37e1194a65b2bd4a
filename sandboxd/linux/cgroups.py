"""Control groups: limits that the kernel enforces, and readings from outside. Version 1 and 2.

Knows group names and limits, not boxes. Blocking file access; call from a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from sandboxd.linux.group_readings import (
    GroupReadings,
    GroupV1,
    GroupV2,
    mounted_hierarchies,
)
from sandboxd.linux.trees import make_directory
from sandboxd.model.template import Resources

_PERIOD_US = 100_000
_MIB = 1 << 20
# The guest's own threads count against the limit too, and must never be what fills it.
GUEST_PIDS = 32
_PIDS_PERCENT = 90  # of the machine's, for all boxes together
# How processor time is shared where more is wanted than there is; each version has a unit of its
# own. Boxes weigh a tenth of what other programs do: beside 64 busy kernels the daemon, which needs
# little of a processor, waited up to 280 ms for one, and waits 10 ms since.
_USUAL_SHARES, _USUAL_WEIGHT = 1024, 100
_BOXES_YIELD = 10
_LEAST_SHARES, _MOST_WEIGHT = 2, 10_000  # what both versions take


def yielding_shares(cpu: float) -> int:
    """The weight, in shares of version 1, of a box with `cpu` cores that lets others go first."""
    return max(int(cpu * _USUAL_SHARES) // _BOXES_YIELD, _LEAST_SHARES)


class Cgroups(Protocol):
    """The groups of one installation."""

    version: str  # "v1", "v2", "none"
    detail: str  # where, or why not, in words for `doctor`

    def create(self, name: str, resources: Resources) -> None:
        """Make a group and set its limits. Raises OSError."""
        ...

    def hosting(self, name: str) -> AbstractContextManager[None]:
        """While inside, what the calling thread starts is born in the group, if it can be so."""
        ...

    def entrances(self, name: str) -> list[Path]:
        """The files that the pid of a process must be written to, for it to join."""
        ...

    def binds(self, name: str) -> list[tuple[Path, str]]:
        """Host directory and place inside, for the guest to read its own counters."""
        ...

    def read(self, name: str) -> GroupReadings:
        """Never raises for a group that is gone: all None."""
        ...

    def cpu_used(self, name: str) -> int | None:
        """Processor time so far, in the version's own unit, to be compared; None if not known."""
        ...

    def processes(self, name: str) -> list[int]:
        """Who is in the group, as we count; empty where there are no groups."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the group; False while something in it still dies. Gone already is True."""
        ...

    def close(self) -> None:
        """Remove the installation's own level if it is empty."""
        ...


class NoCgroups:
    """A machine that does not let us have groups."""

    version = "none"

    def __init__(self, detail: str) -> None:
        self.detail = detail

    def create(self, name: str, resources: Resources) -> None:
        """Nothing to make."""

    def hosting(self, name: str) -> AbstractContextManager[None]:
        """No group to be born in."""
        return nullcontext()

    def entrances(self, name: str) -> list[Path]:
        """None to join."""
        return []

    def binds(self, name: str) -> list[tuple[Path, str]]:
        """Nothing to show."""
        return []

    def read(self, name: str) -> GroupReadings:
        """Nothing is known."""
        return GroupReadings()

    def cpu_used(self, name: str) -> int | None:
        """Not known."""
        return None

    def processes(self, name: str) -> list[int]:
        """No group to be in."""
        return []

    def remove(self, name: str) -> bool:
        """Nothing to remove."""
        return True

    def close(self) -> None:
        """Nothing to remove."""


class CgroupsV1:
    """One group in each of the hierarchies memory, pids, cpu and cpuacct."""

    version = "v1"

    def __init__(self, hierarchies: Mapping[str, Path], parent: str) -> None:
        """hierarchies: controller to mount point. Raises OSError if they cannot be written."""
        self._parents = {name: path / parent for name, path in hierarchies.items()}
        self.detail = f"version 1, below {self._parents['memory']} and its siblings"
        self._own = {name: _own_group(name, path) for name, path in hierarchies.items()}
        for path in self._parents.values():
            _make(path)
            if not os.access(path, os.W_OK):
                raise PermissionError(f"{path} is somebody else's")
        _leave_pids(self._parents["pids"])
        _weigh(self._parents["cpu"] / "cpu.shares", yielding_shares(1))

    def create(self, name: str, resources: Resources) -> None:
        """Make a group in each hierarchy and set its limits."""
        for parent in self._parents.values():
            _make(parent / name)
        memory = self._parents["memory"] / name
        limit = str(resources.memory_mb * _MIB)
        _put(memory / "memory.limit_in_bytes", limit)
        with suppress(FileNotFoundError):  # a kernel without swap accounting
            _put(memory / "memory.memsw.limit_in_bytes", limit)
        _put(self._parents["pids"] / name / "pids.max", str(resources.pids + GUEST_PIDS))
        cpu = self._parents["cpu"] / name
        _put(cpu / "cpu.cfs_period_us", str(_PERIOD_US))
        _put(cpu / "cpu.cfs_quota_us", str(int(resources.cpu * _PERIOD_US)))
        _weigh(cpu / "cpu.shares", int(resources.cpu * _USUAL_SHARES))

    @contextmanager
    def hosting(self, name: str) -> Iterator[None]:
        """Take the calling thread itself into the group.

        A thread that moves itself waits for nobody; to move another process into a group of
        version 1, the kernel first waits for every core in turn (10 ms and more).
        """
        try:
            for parent in self._parents.values():
                _put(parent / name / "tasks", "0")
            yield
        finally:
            for own in self._own.values():
                _put(own / "tasks", "0")

    def entrances(self, name: str) -> list[Path]:
        """None: boxes are born in theirs."""
        return []

    def binds(self, name: str) -> list[tuple[Path, str]]:
        """The hierarchies that the guest reads, where it looks for them."""
        return [
            (self._parents[controller] / name, f"/sys/fs/cgroup/{controller}")
            for controller in ("memory", "pids", "cpuacct")
        ]

    def read(self, name: str) -> GroupReadings:
        """From cpuacct and memory."""
        return self._group(name).read()

    def cpu_used(self, name: str) -> int | None:
        """In ns."""
        return self._group(name).cpu_used()

    def processes(self, name: str) -> list[int]:
        """By the hierarchy of memory."""
        return self._group(name).processes()

    def _group(self, name: str) -> GroupV1:
        return GroupV1(self._parents["memory"] / name, self._parents["cpuacct"] / name)

    def remove(self, name: str) -> bool:
        """From every hierarchy."""
        left = [parent for parent in self._parents.values() if not _remove(parent / name)]
        return not left

    def close(self) -> None:
        """Remove the parents that are empty."""
        for parent in self._parents.values():
            _remove(parent)


class CgroupsV2:
    """One group in the unified hierarchy."""

    version = "v2"

    def __init__(self, base: Path, parent: str) -> None:
        """base: a group that we may make children in. Raises OSError if we may not."""
        self._parent = base / parent
        self.detail = f"version 2, below {self._parent}"
        _enable(base)
        _make(self._parent)
        try:
            _enable(self._parent)
        except OSError:
            self.close()
            raise
        _leave_pids(self._parent)
        _weigh(self._parent / "cpu.weight", _USUAL_WEIGHT // _BOXES_YIELD)

    def create(self, name: str, resources: Resources) -> None:
        """Make a group and set its limits."""
        group = self._parent / name
        _make(group)
        _put(group / "memory.max", str(resources.memory_mb * _MIB))
        with suppress(FileNotFoundError):  # a kernel without swap accounting
            _put(group / "memory.swap.max", "0")
        _put(group / "pids.max", str(resources.pids + GUEST_PIDS))
        _put(group / "cpu.max", f"{int(resources.cpu * _PERIOD_US)} {_PERIOD_US}")
        _weigh(group / "cpu.weight", int(resources.cpu * _USUAL_WEIGHT))

    def hosting(self, name: str) -> AbstractContextManager[None]:
        """Not here: a thread alone cannot leave its process's group."""
        return nullcontext()

    def entrances(self, name: str) -> list[Path]:
        """The one."""
        return [self._parent / name / "cgroup.procs"]

    def binds(self, name: str) -> list[tuple[Path, str]]:
        """The group itself, as the root of what the guest sees."""
        return [(self._parent / name, "/sys/fs/cgroup")]

    def read(self, name: str) -> GroupReadings:
        """From the group's own files; the peak is there from Linux 5.19 on."""
        return GroupV2(self._parent / name).read()

    def cpu_used(self, name: str) -> int | None:
        """In µs."""
        return GroupV2(self._parent / name).cpu_used()

    def processes(self, name: str) -> list[int]:
        """Of the group itself."""
        return GroupV2(self._parent / name).processes()

    def remove(self, name: str) -> bool:
        """Remove the group."""
        return _remove(self._parent / name)

    def close(self) -> None:
        """Remove the parent if it is empty."""
        _remove(self._parent)


def find_cgroups(parent: str) -> Cgroups:
    """The groups that this machine lets us have, below a level named `parent`."""
    mounts = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
    reasons = []
    if {"memory", "pids", "cpu", "cpuacct"} <= mounts.keys():
        try:
            return CgroupsV1(
                {name: mounts[name] for name in ("memory", "pids", "cpu", "cpuacct")}, parent
            )
        except OSError as error:
            reasons.append(f"version 1: {error}")
    if "" in mounts:
        for base in _v2_bases(mounts[""]):
            try:
                return CgroupsV2(base, parent)
            except OSError as error:
                reasons.append(f"version 2: {error}")
    return NoCgroups("; ".join(reasons) or "no control groups are mounted")


def _own_group(controller: str, mount: Path) -> Path:
    """The group of version 1 that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            # In a container the path is the host's, of which the mount may be a part.
            own = mount / path.lstrip("/")
            return own if own.is_dir() else mount
    return mount


def _v2_bases(mount: Path) -> list[Path]:
    """Where we may be let make groups: at the top as root, else in what was delegated to us.

    A group with processes of its own cannot hand limits to children, so a daemon in a delegated
    unit stands in a leaf (systemd: DelegateSubgroup), and its siblings are made beside it.
    """
    bases = [mount] if os.geteuid() == 0 else []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = mount / line[3:].lstrip("/")
            bases += [own.parent, own] if own != mount else []
    return bases


def _enable(group: Path) -> None:
    """Hand memory, pids and cpu on to a group's children. Raises OSError if it has them not."""
    wanted = {"memory", "pids", "cpu"}
    control = group / "cgroup.subtree_control"
    if missing := wanted - set((group / "cgroup.controllers").read_text().split()):
        raise OSError(f"{group} has no controller {', '.join(sorted(missing))}")
    if not wanted <= set(control.read_text().split()):
        control.write_text(" ".join(f"+{name}" for name in sorted(wanted)))


def _make(group: Path) -> None:
    """Make a group that its members may look into."""
    with suppress(FileExistsError):
        make_directory(group, mode=0o755)


def _leave_pids(level: Path) -> None:
    """Keep some of the machine's process numbers out of reach of all boxes together.

    Each box has a limit; but a hundred that fork without end would leave none to the daemon, and to
    whoever wants to look after the machine.
    """
    with suppress(OSError, ValueError):
        most = int(Path("/proc/sys/kernel/pid_max").read_text())
        _put(level / "pids.max", str(most * _PIDS_PERCENT // 100))


def _weigh(path: Path, weight: int) -> None:
    """How much of a wanted processor a group gets beside its siblings. A wish, not a limit: where
    it cannot be had, boxes work all the same.
    """
    with suppress(OSError):
        _put(path, str(min(max(weight, _LEAST_SHARES), _MOST_WEIGHT)))


def _put(path: Path, text: str) -> None:
    """Write to a file that is there. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
