"""Why an image cannot be had, from the words of whoever tried to get it. Pure.

Engines and nodes give no codes for this, only sentences of the registry client inside them.
"""

from __future__ import annotations

import re
from enum import StrEnum


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
