"""Names, labels and paths of what is ours in a cluster. Pure.

Labels and annotations are written by the call that creates an object, and say all that another
daemon must know of a box.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

INSTALLATION = "sandboxd/installation"
BOX = "sandboxd/box"
ISOLATED = "sandboxd/isolated"  # on pods that are on no network
OWNER = "app.kubernetes.io/managed-by"
LEASE = "sandboxd/lease"  # an annotation: which lease has the pod
_RUN = "sandboxd/run"
_GROUP = "sandboxd/group"
_MEMORY = "sandboxd/memory-bytes"
_DISK = "sandboxd/disk-bytes"
_ORDER = "sandboxd/label."
_MIB = 1 << 20
_BOX_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?\Z")


def object_name(tag: str, box_id: str) -> str:
    """Of a box's pod, and of its secret. Raises `bad_request` for an unfit id."""
    if _BOX_ID.match(box_id) is None:
        raise SandboxdError(ErrorCode.BAD_REQUEST, f"{box_id!r} cannot name a box")
    return f"sandboxd-{tag}-{box_id}"


def labels_of(installation: str, box_id: str = "") -> dict[str, str]:
    """The marks of an owner."""
    marks = {OWNER: "sandboxd", INSTALLATION: installation}
    return {**marks, BOX: box_id} if box_id else marks


def selector(installation: str, box_id: str = "") -> str:
    """What is this installation's boxes', or one box's."""
    return f"{INSTALLATION}={installation},{f'{BOX}={box_id}' if box_id else BOX}"


def annotations_of(order: BoxOrder) -> dict[str, str]:
    """What the box was ordered with."""
    resources = order.spec.resources
    return {
        _MEMORY: str(resources.memory_mb * _MIB),
        _DISK: str(resources.disk_mb * _MIB),
        **{f"{_ORDER}{name}": value for name, value in order.labels.items()},
    }


def order_labels(annotations: Mapping[str, str]) -> dict[str, str]:
    """The labels that the box was ordered with."""
    return {
        name.removeprefix(_ORDER): value
        for name, value in annotations.items()
        if name.startswith(_ORDER)
    }


def deed_of(*, lease_id: str, run_id: str, group_id: str) -> dict[str, str]:
    """The annotations that say which lease has a pod, and with which others."""
    words = {LEASE: lease_id, _RUN: run_id, _GROUP: group_id}
    return {name: value for name, value in words.items() if value}


def limits_of(annotations: Mapping[str, str]) -> tuple[int, int]:
    """The memory and disk limits in bytes; what somebody spoiled counts as no limit."""
    return _bytes(annotations.get(_MEMORY, ""), 0), _bytes(annotations.get(_DISK, ""), 1 << 62)


def _bytes(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise


def pods_path(namespace: str, name: str = "") -> str:
    """All pods of a namespace, or one."""
    return _path(f"/api/v1/namespaces/{namespace}/pods", name)


def secrets_path(namespace: str, name: str = "") -> str:
    """All secrets of a namespace, or one."""
    return _path(f"/api/v1/namespaces/{namespace}/secrets", name)


def events_path(namespace: str) -> str:
    """All events of a namespace."""
    return f"/api/v1/namespaces/{namespace}/events"


def policies_path(namespace: str, name: str = "") -> str:
    """All network policies of a namespace, or one."""
    return _path(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", name)


def _path(path: str, name: str) -> str:
    return f"{path}/{name}" if name else path
