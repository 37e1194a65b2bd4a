"""The DaemonSets that have nodes pull images, word for word, and how far they are. Pure.

One stands for an image and a choice of nodes. Its pod is made of the image itself, so that its node
keeps it; it runs the guest's program, which does nothing, so that any image will do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.backends.kubernetes.creating import (
    GUEST,
    NO_ACCOUNT,
    NO_RIGHTS,
    SANDBOX,
    fields_of,
    merged,
    pull_secrets,
)
from sandboxd.backends.kubernetes.objects import INSTALLATION, ISOLATED, labels_of
from sandboxd.backends.kubernetes.talking.server import Json
from sandboxd.guest.inside import GUEST_INSIDE
from sandboxd.model.template import PodOptions

IMAGE = "sandboxd/image"  # the label that tells one from another
_REFERENCE = "sandboxd/image-reference"
# Of what a template says of its pods: which nodes they go to, and how those pull.
_CHOICE = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName")
_VOLUME, _PROGRAM = "guest", "program"
_AMOUNTS = {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """An image that nodes are to have. choice: which nodes, as a pod's spec says it, in JSON."""

    image: str
    choice: str = "{}"

    @property
    def digest(self) -> str:
        """Short, and another one for each errand."""
        return hashlib.sha256(f"{self.image}\n{self.choice}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the DaemonSet of an errand is. wanted, ready: nodes."""

    digest: str
    name: str
    wanted: int = 0
    ready: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all nodes that are to have the image have it."""
        return 0 < self.wanted <= self.ready


def errand_of(image: str, options: PodOptions, *, secrets: Sequence[str] = ()) -> Errand:
    """The errand for templates of that image whose pods have these fields. secrets: with which
    all images are pulled.
    """
    fields = fields_of(options)
    if secrets:
        fields = merged(fields, {"imagePullSecrets": pull_secrets(secrets)})
    choice = {name: fields[name] for name in _CHOICE if name in fields}
    return Errand(image=image, choice=json.dumps(choice, sort_keys=True))


def daemon_sets_path(namespace: str, name: str = "") -> str:
    """All DaemonSets of a namespace, or one."""
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    return f"{path}/{name}" if name else path


def selector_of(installation: str) -> str:
    """What stands for images of this installation: DaemonSets, and their pods."""
    return f"{INSTALLATION}={installation},{IMAGE}"


def body_of(errand: Errand, *, installation: str, tag: str, guest_image: str) -> Json:
    """The whole body of the call that creates its DaemonSet."""
    marks = {**labels_of(installation), IMAGE: errand.digest}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": f"sandboxd-{tag}-image-{errand.digest}",
            "labels": marks,
            "annotations": {_REFERENCE: errand.image},
        },
        "spec": {
            "selector": {"matchLabels": {INSTALLATION: installation, IMAGE: errand.digest}},
            "template": {
                "metadata": {"labels": {**marks, ISOLATED: "true"}},
                "spec": {**json.loads(errand.choice), **_pod_spec(errand.image, guest_image)},
            },
        },
    }


def _pod_spec(image: str, guest_image: str) -> Json:
    mount = {"name": _VOLUME, "mountPath": "/guest"}
    program = {"name": _VOLUME, "mountPath": GUEST_INSIDE, "subPath": _PROGRAM, "readOnly": True}
    return {
        **NO_ACCOUNT,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsUser": 65534,
            "runAsGroup": 65534,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [
            {
                **_container(GUEST, guest_image),
                "command": ["/sandbox-guest"],
                "args": ["install", "--program", f"/guest/{_PROGRAM}"],
                "volumeMounts": [mount],
            }
        ],
        "containers": [
            {
                **_container(SANDBOX, image),
                "command": [GUEST_INSIDE],
                "args": ["wait"],
                "workingDir": "/",
                "volumeMounts": [program],
            }
        ],
        "volumes": [{"name": _VOLUME, "emptyDir": {}}],
    }


def _container(name: str, image: str) -> Json:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _AMOUNTS,
        "securityContext": NO_RIGHTS,
    }


def standing_from(body: Json) -> Standing:
    """From the server's JSON. One that its controller has not looked at yet wants no node."""
    meta, status = body["metadata"], body.get("status") or {}
    is_seen = int(status.get("observedGeneration") or 0) >= int(meta.get("generation") or 0)
    return Standing(
        digest=str((meta.get("labels") or {}).get(IMAGE, "")),
        name=str(meta["name"]),
        wanted=int(status.get("desiredNumberScheduled") or 0) if is_seen else 0,
        ready=int(status.get("numberReady") or 0) if is_seen else 0,
    )
