"""Why an image cannot be had: whose fault, and what mends it. Pure.

What an engine's words do not name is not blamed on anybody's task.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.backends.parts.pull_words import Cause
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault


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
