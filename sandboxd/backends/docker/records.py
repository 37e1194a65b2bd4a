"""A box as this backend knows it, and the same as a reference that can be stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandboxd.backends.docker.labels import limits_of
from sandboxd.backends.protocol import BoxRef
from sandboxd.linux.processes import ProcessMark

NAME = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestAddress:
    """Where a guest listens by TCP. started_at: when its container was, in the engine's words."""

    host: str
    port: int
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where the guest of a container is: its process, or its address; neither: it has ended."""

    process: ProcessMark | None = None
    address: GuestAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """What is known of a box.

    process: its first one; None where the engine's are out of sight. address: of its guest, where
    that is reached by TCP.
    """

    box_id: str
    container_id: str
    memory_limit_bytes: int
    disk_limit_bytes: int
    process: ProcessMark | None
    address: GuestAddress | None = None


def record_of_container(
    box_id: str, container_id: str, labels: Mapping[str, str], where: Whereabouts
) -> BoxRecord:
    """From what the engine says of a container of ours."""
    memory, disk = limits_of(labels)
    return BoxRecord(
        box_id=box_id,
        container_id=container_id,
        memory_limit_bytes=memory,
        disk_limit_bytes=disk,
        process=where.process,
        address=where.address,
    )


def reference(record: BoxRecord) -> BoxRef:
    """The record as a reference."""
    details: dict[str, str | int] = {
        "container": record.container_id,
        "memory_limit_bytes": record.memory_limit_bytes,
        "disk_limit_bytes": record.disk_limit_bytes,
    }
    if (mark := record.process) is not None:
        details |= mark.facts()
    if (address := record.address) is not None:
        details |= {
            "host": address.host,
            "port": address.port,
            "started_at": address.started_at,
        }
    return BoxRef(backend=NAME, box_id=record.box_id, details=details)


def record_of_reference(ref: BoxRef) -> BoxRecord:
    """The record that a reference was made from; with gaps where it is none of ours."""
    details = ref.details
    return BoxRecord(
        box_id=ref.box_id,
        container_id=str(details.get("container", "")),
        memory_limit_bytes=_number(details.get("memory_limit_bytes"), 0),
        disk_limit_bytes=_number(details.get("disk_limit_bytes"), 1 << 62),
        process=ProcessMark.from_facts(details),
        address=_address(details),
    )


def _number(value: str | int | None, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _address(details: Mapping[str, str | int]) -> GuestAddress | None:
    try:
        return GuestAddress(
            host=str(details["host"]),
            port=int(details["port"]),
            started_at=str(details["started_at"]),
        )
    except (KeyError, ValueError):
        return None
