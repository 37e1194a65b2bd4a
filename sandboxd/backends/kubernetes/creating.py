"""What the API server is told to create, word for word. Pure: a plan in, bodies out."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sandboxd.backends.kubernetes.guest_volume import image_volume
from sandboxd.backends.kubernetes.objects import (
    ISOLATED,
    annotations_of,
    labels_of,
    object_name,
)
from sandboxd.backends.kubernetes.settings import GuestVolume
from sandboxd.backends.kubernetes.talking.server import Json
from sandboxd.backends.protocol import BoxOrder
from sandboxd.guest.inside import (
    GUEST_INSIDE,
    KEPT_CAPABILITIES,
    READ_BY_THE_GUEST,
    SHARED_INSIDE,
)
from sandboxd.guest.tcp import GUEST_PORT
from sandboxd.model.template import Mount, PodOptions

SANDBOX, GUEST = "sandbox", "guest"  # the two containers of a pod, in the other order of time
GRACE_S = 1  # a guest ends by no signal but KILL
TOKEN_KEY = "token"  # noqa: S105 - of a secret, not one
# Of every pod of ours; and of each of our containers but the sandbox itself.
NO_ACCOUNT: Json = {"automountServiceAccountToken": False, "enableServiceLinks": False}
NO_RIGHTS: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

_VOLUME = "guest"  # what the two share: the program and the token
_VOLUME_AT = "/guest"
_PROGRAM, _SHARED = "program", "shared"  # in it
_PROGRAM_VOLUME, _PROGRAM_NAME = "program", "sandbox-guest"  # where the program is a volume
_GUEST_MB = 16  # of it, beside what the sandbox may write
_LEGACY = "/dev/termination-log"  # what a node reads once the guest has ended
_PULL = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """One box, as the cluster must see it.

    arguments: for the guest's `serve`. token: of the guest. isolated: on no network.
    guest_volume: how the program comes. seccomp_profile, cpu_request, memory_request: as in
    KubernetesSettings.
    """

    order: BoxOrder
    installation: str
    tag: str
    guest_image: str
    token: str
    arguments: tuple[str, ...] = ()
    guest_volume: GuestVolume = "copy"
    seccomp_profile: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    cpu_request: float = 1.0
    memory_request: float = 1.0
    orphan_s: float = 3600.0

    @property
    def program(self) -> str:
        """The guest's program, as the sandbox sees it."""
        is_copy = self.guest_volume == "copy"
        return GUEST_INSIDE if is_copy else f"{GUEST_INSIDE}/{_PROGRAM_NAME}"

    @property
    def name(self) -> str:
        """Of the pod and of its secret."""
        return object_name(self.tag, self.order.box_id)


def secret_body(plan: PodPlan) -> Json:
    """The token, for the init container alone. It goes once the guest has it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": plan.name,
            "labels": labels_of(plan.installation, plan.order.box_id),
            "annotations": annotations_of(plan.order),
        },
        "immutable": True,  # nobody need watch it
        "data": {TOKEN_KEY: b64encode(plan.token.encode()).decode()},
    }


def pod_body(plan: PodPlan) -> Json:
    """The whole body of the call that creates the pod."""
    spec = plan.order.spec
    isolated = {ISOLATED: "true"} if spec.network.kind == "none" else {}
    own: Json = {
        "restartPolicy": "Never",  # a box is used once
        **NO_ACCOUNT,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": _seccomp(plan.seccomp_profile)},
        "initContainers": [_guest(plan)],
        "containers": [_sandbox(plan)],
        "volumes": [{"name": _VOLUME, "emptyDir": {}}, *_volumes(plan)],
    }
    if spec.runtime:
        own["runtimeClassName"] = spec.runtime
    if plan.image_pull_secrets:
        own["imagePullSecrets"] = pull_secrets(plan.image_pull_secrets)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "labels": {**labels_of(plan.installation, plan.order.box_id), **isolated},
            "annotations": annotations_of(plan.order),
        },
        "spec": merged(fields_of(spec.pod), own),
    }


def pull_secrets(names: Iterable[str]) -> list[Json]:
    """As a pod's spec has them."""
    return [{"name": name} for name in names]


def fields_of(options: PodOptions) -> Json:
    """What a template adds to its pods' spec."""
    found: Json = json.loads(options.fields) if options.fields else {}
    return found


def merged(under: Any, over: Any) -> Any:
    """Two values in one: tables and lists are joined, of anything else `over` counts."""
    if isinstance(under, dict) and isinstance(over, dict):
        both = {name: merged(under[name], over[name]) for name in under.keys() & over.keys()}
        return {**under, **over, **both}
    if isinstance(under, list) and isinstance(over, list):
        return [*over, *under]
    return over


def _seccomp(profile: str) -> Json:
    if not profile:
        return {"type": "RuntimeDefault"}
    return {"type": "Localhost", "localhostProfile": profile}


def _guest(plan: PodPlan) -> Json:
    """Puts the token, and the guest's program, where the sandbox finds them, and ends."""
    is_copy = plan.guest_volume == "copy"
    program = ("--program", f"{_VOLUME_AT}/{_PROGRAM}") if is_copy else ()
    return {
        "name": GUEST,
        "image": plan.guest_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/sandbox-guest"],
        "args": [
            *("install", *program),
            *("--token-file", f"{_VOLUME_AT}/{_SHARED}/token"),
        ],
        "env": [
            {
                "name": "SANDBOX_GUEST_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": plan.name, "key": TOKEN_KEY}},
            }
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": f"{_GUEST_MB}Mi"},
            "limits": {"cpu": "1", "memory": "64Mi", "ephemeral-storage": f"{_GUEST_MB}Mi"},
        },
        "securityContext": {"runAsUser": 0, **NO_RIGHTS},
        "volumeMounts": [{"name": _VOLUME, "mountPath": _VOLUME_AT}],
    }


def _sandbox(plan: PodPlan) -> Json:
    spec = plan.order.spec
    return {
        "name": SANDBOX,
        "image": spec.image,
        "imagePullPolicy": _PULL[spec.pull],
        "command": [plan.program],
        "args": [
            *("serve", "--listen", f":{GUEST_PORT}", "--token-file", f"{SHARED_INSIDE}/token"),
            *plan.arguments,
            "--inherit-env",
            *("--orphan-limit", f"{plan.orphan_s:g}"),
            *("--legacy", _LEGACY),
        ],
        "terminationMessagePath": _LEGACY,
        # What an image means for its own programs, and the guest's runtime would take for itself.
        "env": [{"name": name, "value": ""} for name in sorted(READ_BY_THE_GUEST)],
        "workingDir": "/",
        "ports": [{"name": "guest", "containerPort": GUEST_PORT}],
        "resources": _resources(plan),
        # The guest is root and makes commands the user they are to be.
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": False,
            "capabilities": {"drop": ["ALL"], "add": list(KEPT_CAPABILITIES)},
        },
        "volumeMounts": [
            _program_mount(plan),
            _own(SHARED_INSIDE, _SHARED),
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - inside the sandbox
            *(_mount(number, mount) for number, mount in enumerate(spec.mounts)),
        ],
    }


def _resources(plan: PodPlan) -> Json:
    wanted, gpu_name = plan.order.spec.resources, plan.order.spec.pod.gpu_resource
    gpu = {gpu_name: str(wanted.gpu)} if wanted.gpu else {}
    milli = round(wanted.cpu * 1000)
    return {
        "limits": {
            "cpu": f"{max(milli, 1)}m",
            "memory": f"{wanted.memory_mb}Mi",
            "ephemeral-storage": f"{wanted.disk_mb + _GUEST_MB}Mi",
            **gpu,
        },
        "requests": {
            "cpu": f"{max(round(milli * plan.cpu_request), 1)}m",
            "memory": f"{max(round(wanted.memory_mb * plan.memory_request), 1)}Mi",
            "ephemeral-storage": f"{_GUEST_MB}Mi",
            **gpu,
        },
    }


def _program_mount(plan: PodPlan) -> Json:
    if plan.guest_volume == "copy":
        return _own(GUEST_INSIDE, _PROGRAM, read_only=True)
    return {"name": _PROGRAM_VOLUME, "mountPath": GUEST_INSIDE, "readOnly": True}


def _own(path: str, part: str, *, read_only: bool = False) -> Json:
    return {"name": _VOLUME, "mountPath": path, "subPath": part, "readOnly": read_only}


def _mount(number: int, mount: Mount) -> Json:
    return {"name": f"mount-{number}", "mountPath": mount.target, "readOnly": mount.read_only}


def _volumes(plan: PodPlan) -> list[Json]:
    spec = plan.order.spec
    shm_mb = spec.shm_mb or max(spec.resources.memory_mb // 2, 1)
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_mb}Mi"}}
    is_copy = plan.guest_volume == "copy"
    return [
        shm,
        *(() if is_copy else (image_volume(_PROGRAM_VOLUME, plan.guest_image),)),
        *(
            {"name": f"mount-{number}", "hostPath": {"path": mount.source}}
            for number, mount in enumerate(spec.mounts)
        ),
    ]
