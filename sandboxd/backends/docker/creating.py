"""What the engine is told to create, word for word. Pure: a plan in, the call's body out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.backends.docker.labels import labels_of
from sandboxd.backends.protocol import BoxOrder
from sandboxd.guest.inside import GUEST_INSIDE, KEPT_CAPABILITIES, SHARED_INSIDE, SOCKET_INSIDE
from sandboxd.kernel.cgroups import GUEST_PIDS

Body = dict[str, Any]  # JSON, as the engine's API has it

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One box, as the engine must see it. Paths are those of the engine's machine.

    image: the id, which cannot come to mean another image. user: the image's own, "" for root.
    shared: the box's directory. network: the engine's name of it. seccomp: a profile as JSON;
    empty where the engine has no such filter.
    """

    order: BoxOrder
    installation: str
    image: str
    user: str
    guest: str
    shared: str
    network: str
    seccomp: str = ""


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
        "Cmd": _guest_arguments(plan.user),
        "Healthcheck": {"Test": ["NONE"]},  # the image's own would run beside the guest
        "StopSignal": "SIGKILL",  # a guest ends by no other
        "HostConfig": _host_config(plan),
    }


def _guest_arguments(user: str) -> list[str]:
    words = ["serve", "--socket", SOCKET_INSIDE, "--inherit-env"]
    return [*words, "--user", user] if user else words


def _host_config(plan: ContainerPlan) -> Body:
    spec = plan.order.spec
    return {
        **_limits(plan),
        "Mounts": _mounts(plan),
        "NetworkMode": plan.network,
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
        "Memory": memory,
        "MemorySwap": memory,  # the two together: no swap beside the memory
        "PidsLimit": resources.pids + GUEST_PIDS,
        "ShmSize": plan.order.spec.shm_mb * _MIB or memory // 2,
    }


def _mounts(plan: ContainerPlan) -> list[Body]:
    """Binds as mounts, which the engine refuses where the source is missing; it never makes it."""
    return [
        _bind(plan.guest, GUEST_INSIDE, read_only=True),
        _bind(plan.shared, SHARED_INSIDE, read_only=False),
        *(
            _bind(mount.source, mount.target, read_only=mount.read_only)
            for mount in plan.order.spec.mounts
        ),
    ]


def _bind(source: str, target: str, *, read_only: bool) -> Body:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _devices(gpu: int) -> list[Mapping[str, Any]]:
    return [{"Count": gpu, "Capabilities": [["gpu"]]}] if gpu else []
