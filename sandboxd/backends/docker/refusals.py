"""What an engine's refusal to make a box means, from its words: whose fault, and the mend. Pure.

Engines give sentences of several programs, and no codes. What matches none of those known here
is not blamed on anybody's task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandboxd.backends.docker.engine import EngineRefused
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault


@dataclass(frozen=True, slots=True)
class _Meaning:
    words: str
    code: ErrorCode
    fault: Fault
    sentence: str


# The first that matches counts.
_MEANINGS = (
    _Meaning(
        r"no space left on device|disk quota exceeded",
        ErrorCode.DISK_FULL,
        Fault.INFRA,
        "the engine's disk is full",
    ),
    _Meaning(
        r"no such image",
        ErrorCode.IMAGE_UNAVAILABLE,
        Fault.TASK,
        "the image went away while the sandbox was made",
    ),
    _Meaning(
        r"exec format error",
        ErrorCode.START_FAILED,
        Fault.TASK,
        "the image is made for another kind of machine",
    ),
    _Meaning(
        r"unknown (or invalid )?runtime",
        ErrorCode.NOT_SUPPORTED,
        Fault.CLIENT,
        "the engine has no such runtime",
    ),
    _Meaning(
        r"could not select device driver|cdi device injection|no known gpu vendor",
        ErrorCode.NOT_SUPPORTED,
        Fault.CLIENT,
        "the engine has no GPU to give",
    ),
    _Meaning(
        r"exchange full|address pool|no available ipv?4|no available network",
        ErrorCode.CAPACITY,
        Fault.INFRA,
        "the sandboxes' network is full (a bridge takes about 1000 of them)",
    ),
    _Meaning(
        r"bind source path does not exist",
        ErrorCode.START_FAILED,
        Fault.TASK,
        "a folder that the template mounts is not on the engine's machine",
    ),
    _Meaning(
        r"\bmounting\b.*(not a directory|is a directory|read-only file system|no such file)",
        ErrorCode.START_FAILED,
        Fault.TASK,
        "the image has no room for what is mounted into it",
    ),
)


def start_refused(refusal: EngineRefused, image: str) -> SandboxdError:
    """The error for a container of `image` that the engine would not create or start."""
    words = refusal.detail
    for meaning in _MEANINGS:
        if re.search(meaning.words, words, re.IGNORECASE | re.DOTALL):
            return SandboxdError(
                meaning.code,
                f"image {image!r}: {meaning.sentence} ({words})",
                fault=meaning.fault,
                mask=True,
                details={"image": image},
            )
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"image {image!r}: the engine could not start it ({words})",
        details={"image": image},
    )


def removal_refused(refusal: EngineRefused, box_id: str) -> SandboxdError:
    """The error for a container that the engine would not remove; worth another try."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the engine could not remove box {box_id} ({refusal.detail})",
        retry_after_s=1.0,
    )


def call_refused(refusal: EngineRefused) -> SandboxdError:
    """The error for any other call that an engine should not refuse."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the container engine refused a call ({refusal.status}: {refusal.detail})",
        retry_after_s=2.0,
    )
