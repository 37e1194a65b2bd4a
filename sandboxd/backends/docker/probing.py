"""What an engine can do, from what it says of itself. Pure, beside the one look at our own disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sandboxd.backends.protocol import Capabilities, LimitKind
from sandboxd.model.template import Resources

Info = Mapping[str, Any]  # the engine's answer to `info`

_MIB = 1 << 20
_OWN_RUNTIMES = "io.containerd."  # what runtimes are made of, no names that anybody gives
_REMAPPED = re.compile(r"([0-9]+)\.([0-9]+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the engine does not say. internet: its networks lead there. counts: whether we see
    the control groups of its containers. by_tcp: guests are reached so, not by sockets. named: an
    operator named the network that leads there.
    """

    internet: bool
    counts: bool
    by_tcp: bool = False
    named: bool = False

    @property
    def sees_groups(self) -> bool:
        """Whether the groups of containers are in sight and known to be theirs."""
        return self.counts and not self.by_tcp

    @property
    def networks(self) -> frozenset[str]:
        """What kinds there are for boxes. Who must be reached by TCP cannot have none."""
        kinds = {"internet"} if self.internet else set()
        return frozenset(kinds if self.by_tcp else kinds | {"none"})

    @property
    def direct_networks(self) -> frozenset[str]:
        """What boxes are on by themselves. Else their guests lead out, where each address is
        checked: ADR 0012.
        """
        direct = self.by_tcp or self.named
        return self.networks - {"none"} if direct else frozenset()


def capabilities_of(info: Info, surroundings: Surroundings) -> Capabilities:
    """What boxes can have on this engine."""
    return Capabilities(
        limits={
            "cpu": _held(info, "CpuCfsQuota", "CPUCfsQuota"),
            "memory": _held(info, "MemoryLimit"),
            "pids": _held(info, "PidsLimit"),
            "disk": LimitKind.WATCHED,
        },
        networks=surroundings.networks,
        direct_networks=surroundings.direct_networks,
        way_out=True,
        runtimes=frozenset(_runtimes(info)),
        images="an image reference",
        most=_whole_machine(info),
        other_users=True,
        gpu=has_gpu(info),
        oom_evidence=surroundings.sees_groups,
        notes=tuple(_notes(info, surroundings)),
    )


def has_seccomp(info: Info) -> bool:
    """Whether it filters system calls."""
    return any(option.startswith("name=seccomp") for option in _security(info))


def is_rootless(info: Info) -> bool:
    """Whether it runs as an ordinary user: a box's root is that user."""
    return any(option.startswith("name=rootless") for option in _security(info))


def box_owner(info: Info) -> tuple[int, int] | None:
    """The user and group ids that a box's root has on the machine, where they are not root's own.

    An engine with a mapped range keeps its data in a directory named after it.
    """
    if not any(option.startswith("name=userns") for option in _security(info)):
        return None
    match = _REMAPPED.search(str(info.get("DockerRootDir", "")))
    return (int(match[1]), int(match[2])) if match else None


def has_gpu(info: Info) -> bool:
    """Whether it has GPUs to give, by a runtime for them or by devices that it found."""
    devices = info.get("DiscoveredDevices") or []
    return "nvidia" in (info.get("Runtimes") or {}) or any(
        "gpu" in str(device.get("ID", "")) for device in devices
    )


def _security(info: Info) -> list[str]:
    return [str(option) for option in info.get("SecurityOptions") or []]


def _runtimes(info: Info) -> set[str]:
    return {
        name
        for name, facts in (info.get("Runtimes") or {}).items()
        if not name.startswith(_OWN_RUNTIMES) and not _is_gvisor(name, facts)
    }


def _is_gvisor(name: str, facts: Mapping[str, Any] | None) -> bool:
    """It has no subreaper, so that what a command left behind could not be ended; and all of a box
    listens as one process, so that no guest can be told from an impostor.
    """
    program = PurePosixPath(str((facts or {}).get("path") or name)).name
    return program.startswith("runsc")


def _held(info: Info, *names: str) -> LimitKind:
    return LimitKind.ENFORCED if any(info.get(name) for name in names) else LimitKind.NONE


def _whole_machine(info: Info) -> Resources:
    """The engine's machine; its disk only where it is ours too."""
    disk_mb = 1 << 30
    root = Path(str(info.get("DockerRootDir") or "/nonexistent"))
    if root.is_dir():
        disk_mb = shutil.disk_usage(root).total // _MIB
    return Resources(
        cpu=float(info.get("NCPU") or 1),
        memory_mb=int(info.get("MemTotal") or 0) // _MIB,
        pids=1 << 22,
        disk_mb=disk_mb,
    )


def _notes(info: Info, surroundings: Surroundings) -> list[str]:
    notes = []
    if not has_seccomp(info):
        notes.append("the engine filters no system calls: build it, or the kernel, with seccomp")
    if not info.get("MemoryLimit"):
        notes.append("the engine holds no limit on memory: give it the memory control group")
    if not info.get("SwapLimit") and str(info.get("CgroupVersion")) == "1":
        notes.append("swap counts beside the memory limit: boot with swapaccount=1")
    if any(_is_gvisor(*each) for each in (info.get("Runtimes") or {}).items()):
        notes.append("gVisor (runsc) is refused, it ends no command's whole tree: use runc or kata")
    if surroundings.by_tcp:
        notes.append('guests are reached by TCP, so no sandbox can have `network = "none"`: ')
        notes[-1] += "run the daemon beside its engine"
    if not surroundings.sees_groups:
        notes.append("the containers' control groups are out of sight: an out-of-memory kill of a")
        notes[-1] += " whole sandbox is told as unknown"
    if surroundings.named and not surroundings.internet:
        notes.append("there is no network of the name in `backend.docker.network`: make it, or")
        notes[-1] += " leave the key out"
    return notes
