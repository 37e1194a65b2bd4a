"""Files inside a sandbox, as the guest sees them with the rights of the sandbox's user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileType(StrEnum):
    """What stands at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One entry of the file system.

    path, name: undecodable bytes are replaced; then `name_b64` has the true name. size in bytes.
    mode: permission bits with setuid, setgid and sticky. modified_at: Unix seconds.
    target: where a link points, as it is written in the link. after: in a page of a list, what
    the next page begins behind.
    """

    path: str
    name: str
    type: FileType
    size: int
    mode: int
    user: str
    group: str
    modified_at: float
    name_b64: str | None = None
    target: str | None = None
    after: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """What an archive brought: how many members were written, and their bytes together."""

    files: int
    bytes: int
