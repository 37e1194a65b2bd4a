"""What the engine is told to create, word for word. Pure: a plan in, the call's body out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.backends.docker.labels import labels_of
from sandboxd.backends.docker.reaching.way import Door
from sandboxd.backends.protocol import BoxOrder
from sandboxd.guest.inside import (
    GUEST_INSIDE,
    KEPT_CAPABILITIES,
    KEPT_ENV,
    READ_BY_THE_GUEST,
)
from sandboxd.linux.cgroups import GUEST_PIDS, yielding_shares

Body = dict[str, Any]  # JSON, as the engine's API has it

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One box, as the engine must see it. Paths are those of the engine's machine.

    image: the id, which cannot come to mean another image. user: the image's own, "" for root.
    env: the image's own, as NAME=VALUE.
    network: the engine's name of it. seccomp: a profile as this engine is told of it; empty:
    the engine's own stays.
    """

    order: BoxOrder
    installation: str
    image: str
    user: str
    env: tuple[str, ...]
    door: Door
    network: str
    seccomp: str = ""
    orphan_s: float = 3600.0


def container_name(tag: str, box_id: str) -> str:
    """What people see in the engine's list; nothing of ours reads it."""
    return f"sandboxd-{tag}-{box_id}"


def container_body(plan: ContainerPlan) -> Body:
    """The whole body of the call that creates the container."""
    return {
        "Image": plan.image,
        "Labels": labels_of(plan.order, plan.installation),
        # The guest is root and makes commands the image's user; names need not be in the image.
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": [GUEST_INSIDE],
        "Cmd": _guest_arguments(plan),
        "Env": _kept_from_the_guest(plan.env),
        **_exposed(plan.door),
        "Healthcheck": {"Test": ["NONE"]},  # the image's own would run beside the guest
        "StopSignal": "SIGKILL",  # a guest ends by no other
        "HostConfig": _host_config(plan),
    }


def _kept_from_the_guest(env: tuple[str, ...]) -> list[str]:
    """What an image means for its own programs, and the guest's runtime would take for itself, goes
    by another name, under which the guest hands it on to commands.
    """
    pairs = [entry.partition("=")[::2] for entry in env]
    ours = [(name, value) for name, value in pairs if name in READ_BY_THE_GUEST]
    return [word for name, value in ours for word in (f"{name}=", f"{KEPT_ENV}{name}={value}")]


def _guest_arguments(plan: ContainerPlan) -> list[str]:
    words = ["serve", *plan.door.arguments, "--inherit-env"]
    words += ["--orphan-limit", f"{plan.orphan_s:g}"]
    return [*words, "--user", plan.user] if plan.user else words


def _exposed(door: Door) -> Body:
    return {"ExposedPorts": {f"{door.port}/tcp": {}}} if door.publish else {}


def _published(door: Door) -> Body:
    """Under a port of the engine's choice."""
    if not door.publish:
        return {}
    return {"PortBindings": {f"{door.port}/tcp": [{"HostIp": door.publish, "HostPort": ""}]}}


def _host_config(plan: ContainerPlan) -> Body:
    spec = plan.order.spec
    return {
        **_limits(plan),
        "Mounts": _mounts(plan),
        "NetworkMode": plan.network,
        **_published(plan.door),
        "IpcMode": "private",
        "CapDrop": ["ALL"],
        "CapAdd": list(KEPT_CAPABILITIES),
        "SecurityOpt": [f"seccomp={plan.seccomp}"] if plan.seccomp else [],
        "Runtime": spec.runtime,
        "DeviceRequests": _devices(spec.resources.gpu),
        "LogConfig": {"Type": "none", "Config": {}},
        # A box is used once: it is never started again, and goes when we say so.
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": False,
    }


def _limits(plan: ContainerPlan) -> Body:
    resources = plan.order.spec.resources
    memory = resources.memory_mb * _MIB
    return {
        "NanoCpus": int(resources.cpu * 1e9),
        # Where containers stand beside the machine's services, the daemon does not wait for them.
        "CpuShares": yielding_shares(resources.cpu),
        "Memory": memory,
        "MemorySwap": memory,  # the two together: no swap beside the memory
        "PidsLimit": resources.pids + GUEST_PIDS,
        "ShmSize": plan.order.spec.shm_mb * _MIB or memory // 2,
    }


def _mounts(plan: ContainerPlan) -> list[Body]:
    """Binds as mounts, which the engine refuses where the source is missing; it never makes it."""
    return [
        {
            "Type": "bind",
            "Source": mount.source,
            "Target": mount.target,
            "ReadOnly": mount.read_only,
        }
        for mount in (*plan.door.mounts, *plan.order.spec.mounts)
    ]


def _devices(gpu: int) -> list[Mapping[str, Any]]:
    return [{"Count": gpu, "Capabilities": [["gpu"]]}] if gpu else []
