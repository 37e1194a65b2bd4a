"""Why an image cannot be had, from an engine's words: whose fault, and what mends it. Pure.

Engines give no codes for this, only sentences of the registry client inside them; what matches
none of those is not blamed on anybody's task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault


class Cause(StrEnum):
    """Why a pull failed."""

    BUSY = "busy"  # the registry wants fewer requests
    DISK = "disk"
    DIGEST = "digest"
    PLATFORM = "platform"
    DENIED = "denied"
    MISSING = "missing"
    INVALID = "invalid"
    STALLED = "stalled"
    REGISTRY = "registry"  # it does not answer, or not as a registry does


@dataclass(frozen=True, slots=True)
class _Meaning:
    fault: Fault
    sentence: str
    code: ErrorCode = ErrorCode.IMAGE_UNAVAILABLE


_MEANINGS = {
    Cause.BUSY: _Meaning(Fault.INFRA, "its registry asks for fewer requests"),
    Cause.DISK: _Meaning(Fault.INFRA, "the engine's disk is full", ErrorCode.DISK_FULL),
    Cause.DIGEST: _Meaning(Fault.TASK, "what came is not what its digest says"),
    Cause.PLATFORM: _Meaning(Fault.TASK, "its registry has none for this engine's platform"),
    Cause.DENIED: _Meaning(
        Fault.TASK,
        "its registry wants credentials that may read it, or it does not exist: "
        "give them in `backend.docker.registries`",
    ),
    Cause.MISSING: _Meaning(Fault.TASK, "its registry has no such image or tag"),
    Cause.INVALID: _Meaning(Fault.TASK, "the engine does not take this reference"),
    Cause.STALLED: _Meaning(Fault.INFRA, "its pull made no progress and was given up"),
    Cause.REGISTRY: _Meaning(
        Fault.INFRA,
        "its registry does not answer as one: is it up, and can the engine's machine reach it?",
    ),
}

# The first that matches counts: a limit is often told in a sentence about denial.
_WORDS = (
    (Cause.BUSY, r"toomanyrequests|too many requests|\b429\b|rate limit"),
    (Cause.DISK, r"no space left on device|disk quota exceeded"),
    (Cause.DIGEST, r"verification failed for digest|digest mismatch|unexpected digest"),
    (Cause.PLATFORM, r"no matching manifest|does not match the specified platform|no image found"),
    (
        Cause.DENIED,
        r"unauthorized|no basic auth|denied|authentication required|incorrect username|\b40[13]\b",
    ),
    (Cause.MISSING, r"manifest unknown|name unknown|not found|does not exist"),
    (Cause.INVALID, r"invalid reference format|unsupported media type|unsupported manifest"),
)
_RETRY_AFTER = re.compile(r"retry[- ]after\W{0,3}([0-9]{1,5})\b", re.IGNORECASE)


def cause_of(words: str) -> Cause:
    """The cause that an engine's words name."""
    found = (cause for cause, pattern in _WORDS if re.search(pattern, words, re.IGNORECASE))
    return next(found, Cause.REGISTRY)


def retry_after_s(words: str) -> float | None:
    """Seconds that the registry asks to wait, where the engine passes that on."""
    match = _RETRY_AFTER.search(words)
    return float(match[1]) if match else None


def pull_failed(image: str, cause: Cause, words: str) -> SandboxdError:
    """The error for a pull that failed so."""
    meaning = _MEANINGS[cause]
    told = f" ({words})" if words else ""
    return SandboxdError(
        meaning.code,
        f"image {image}: {meaning.sentence}{told}",
        fault=meaning.fault,
        mask=True,
        details={"image": image, "cause": str(cause)},
    )


def unfit(image: str, why: str) -> SandboxdError:
    """The error for an image that is no use here, by the doing of whoever named it."""
    return SandboxdError(
        ErrorCode.IMAGE_UNAVAILABLE, f"image {image}: {why}", details={"image": image}
    )
