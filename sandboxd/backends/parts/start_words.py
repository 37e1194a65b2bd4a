"""What a refusal to start a container means, from its words: whose fault, and the mend. Pure.

Engines and nodes give sentences of several programs, and no codes. What matches none of those
known here is not blamed on anybody's task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    # What the kernel says where a machine's own bounds are used up misleads: no disk is full there.
    _Meaning(
        r"(session key|keyring).*disk quota exceeded",
        ErrorCode.START_FAILED,
        Fault.INFRA,
        "its machine has no kernel keys left: raise the sysctls `kernel.keys.root_maxkeys` and "
        "`kernel.keys.maxkeys`, and their `maxbytes`",
    ),
    _Meaning(
        r"(inotify|fsnotify).*(too many open files|no space left on device)",
        ErrorCode.START_FAILED,
        Fault.INFRA,
        "its machine has no inotify instances left: raise the sysctls "
        "`fs.inotify.max_user_instances` and `fs.inotify.max_user_watches`",
    ),
    _Meaning(
        r"too many open files",
        ErrorCode.START_FAILED,
        Fault.INFRA,
        "what starts sandboxes there has no descriptors left: raise its LimitNOFILE, or the sysctl "
        "`fs.file-max`",
    ),
    _Meaning(
        r"(fork|clone|pthread_create|newosproc|runc|shim).*resource temporarily unavailable",
        ErrorCode.START_FAILED,
        Fault.INFRA,
        "its machine has no processes left: raise the sysctls `kernel.pid_max` and "
        "`kernel.threads-max`, or TasksMax of what starts sandboxes there",
    ),
    _Meaning(
        r"no space left on device|disk quota exceeded",
        ErrorCode.DISK_FULL,
        Fault.INFRA,
        "the disk is full where it was to run",
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
        "there is no such runtime",
    ),
    _Meaning(
        r"could not select device driver|cdi device injection|no known gpu vendor",
        ErrorCode.NOT_SUPPORTED,
        Fault.CLIENT,
        "there is no GPU to give",
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
        "a folder that the template mounts is not on the machine that runs it",
    ),
    _Meaning(
        r"\bmounting\b.*(not a directory|is a directory|read-only file system|no such file)",
        ErrorCode.START_FAILED,
        Fault.TASK,
        "the image has no room for what is mounted into it",
    ),
)


def start_failed(words: str, image: str, *, who: str) -> SandboxdError:
    """The error for a container of `image` that `who`, as "the engine", did not create or start."""
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
        f"image {image!r}: {who} could not start it ({words})",
        details={"image": image},
    )
