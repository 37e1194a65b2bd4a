"""A box as this backend knows it, and the same as a reference that can be stored. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.backends.kubernetes.objects import limits_of
from sandboxd.backends.kubernetes.pods import Pod
from sandboxd.backends.protocol import BoxRef

NAME = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """What is known of a box. uid: of its pod: another of the same name is another box."""

    box_id: str
    name: str
    uid: str
    address: str
    node: str
    memory_limit_bytes: int
    disk_limit_bytes: int


def record_of_pod(pod: Pod) -> BoxRecord:
    """From what the server says of a pod of ours."""
    memory, disk = limits_of(pod.annotations)
    return BoxRecord(
        box_id=pod.box_id,
        name=pod.name,
        uid=pod.uid,
        address=pod.address,
        node=pod.node,
        memory_limit_bytes=memory,
        disk_limit_bytes=disk,
    )


def reference(record: BoxRecord) -> BoxRef:
    """The record as a reference."""
    return BoxRef(
        backend=NAME,
        box_id=record.box_id,
        details={
            "pod": record.name,
            "uid": record.uid,
            "address": record.address,
            "node": record.node,
            "memory_limit_bytes": record.memory_limit_bytes,
            "disk_limit_bytes": record.disk_limit_bytes,
        },
    )


def record_of_reference(ref: BoxRef) -> BoxRecord:
    """The record that a reference was made from; with gaps where it is none of ours."""
    details = ref.details
    return BoxRecord(
        box_id=ref.box_id,
        name=str(details.get("pod", "")),
        uid=str(details.get("uid", "")),
        address=str(details.get("address", "")),
        node=str(details.get("node", "")),
        memory_limit_bytes=_number(details.get("memory_limit_bytes"), 0),
        disk_limit_bytes=_number(details.get("disk_limit_bytes"), 1 << 62),
    )


def _number(value: str | int | None, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
