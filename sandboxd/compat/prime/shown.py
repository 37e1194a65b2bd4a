"""Leases as their clients see sandboxes. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sandboxd.compat.prime.wishes import IMAGE, LABEL, NAME, VM, lists_of
from sandboxd.model.lease import End, Lease, LeaseState
from sandboxd.wire.codes import EndReason, ErrorCode

# The clocks are their TIMEOUT, a caller's own doing TERMINATED, and all else an ERROR with a type.
_STATUS_OF_END = {
    EndReason.RELEASED: "TERMINATED",
    EndReason.RUN_LOST: "TERMINATED",
    EndReason.EXPIRED: "TIMEOUT",
    EndReason.IDLE: "TIMEOUT",
}
_STATUS = {
    LeaseState.QUEUED: "PENDING",
    LeaseState.MAKING: "PROVISIONING",
    LeaseState.LEASED: "RUNNING",
}
# The types that their clients know; they raise an error of their own for each.
_ERROR_TYPES = {
    EndReason.OOM: "OOM_KILLED",
    EndReason.EXPIRED: "TIMEOUT",
    EndReason.IDLE: "TIMEOUT",
}


def status_of(lease: Lease) -> str:
    """The word for where a lease is."""
    if lease.end is not None:
        return _STATUS_OF_END.get(lease.end.reason, "ERROR")
    return _STATUS[lease.state]


def error_of(lease: Lease) -> tuple[str | None, str | None]:
    """Type and message of how it ended; neither while it lives, or where its caller ended it."""
    end = lease.end
    if end is None or end.reason is EndReason.RELEASED:
        return None, None
    return _error_type(end), end.detail or f"the lease ended: {end.reason}"


def _error_type(end: End) -> str:
    if end.reason is EndReason.MAKE_FAILED and end.code is ErrorCode.IMAGE_UNAVAILABLE:
        return "IMAGE_PULL_FAILED"
    return _ERROR_TYPES.get(end.reason, f"SANDBOX_{end.reason}".upper())


def is_vm(lease: Lease) -> bool:
    """Whether it was asked for by a client that runs commands by ConnectRPC."""
    return lease.terms.labels.get(VM) == "true"


def labels_of(lease: Lease) -> list[str]:
    """The labels that its caller gave it, in their order."""
    labels = lease.terms.labels
    places = sorted(int(key.removeprefix(LABEL)) for key in labels if _is_label(key))
    return [labels[f"{LABEL}{place}"] for place in places]


def _is_label(key: str) -> bool:
    return key.startswith(LABEL) and key.removeprefix(LABEL).isdecimal()


def when(at: float) -> str:
    """A point in time (Unix seconds) as they write it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sandbox(lease: Lease, *, image_build: str | None = None) -> dict[str, Any]:
    """A Sandbox of theirs: neither its variables nor its secrets are in it.

    image_build: names an image that is on its way, for which their clients wait longer.
    """
    terms, end = lease.terms, lease.end
    resources, lists = terms.spec.resources, lists_of(terms.network)
    error_type, error_message = error_of(lease)
    idle_s = terms.idle_timeout_s
    latest = lease.leased_at or lease.created_at
    return {
        "id": lease.id,
        "name": terms.labels.get(NAME) or lease.id,
        "dockerImage": terms.labels.get(IMAGE) or terms.spec.image,
        "cpuCores": resources.cpu,
        "memoryGB": resources.memory_mb / 1024,
        "diskSizeGB": resources.disk_mb / 1024,
        "diskMountPath": terms.workdir,
        "gpuCount": resources.gpu,
        "vm": is_vm(lease),
        "networkAllowlist": lists["allowlist"],
        "networkDenylist": lists["denylist"],
        "status": status_of(lease),
        "timeoutMinutes": max(1, round(terms.timeout_s / 60)),
        "idleTimeoutMinutes": max(1, round(idle_s / 60)) if idle_s else None,
        "terminationReason": None if end is None else str(end.reason),
        "labels": labels_of(lease),
        "createdAt": when(lease.created_at),
        "updatedAt": when(latest if end is None else end.at),
        "startedAt": None if lease.leased_at is None else when(lease.leased_at),
        "terminatedAt": None if end is None else when(end.at),
        "errorType": error_type,
        "errorMessage": error_message,
        "pendingImageBuildId": image_build,
    }


def snapshot(lease: Lease, *, image_build: str | None) -> dict[str, Any]:
    """Where it is, as a batch of them tells."""
    error_type, error_message = error_of(lease)
    return {
        "sandbox_id": lease.id,
        "status": status_of(lease),
        "error_type": error_type,
        "error_message": error_message,
        "pending_image_build_id": image_build,
    }
