"""What is equal in every box of one layout: mount points, links, empty directories, a few files.

Built once on disk, and lying under what each box writes, so that a box costs few inodes of its
own. Knows paths and modes, no images and no boxes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sandboxd.linux.trees import make_directory, remove_tree

_OWN_DIRECTORIES = {
    "/": 0o755,
    "/tmp": 0o1777,  # noqa: S108 - the sandbox's own
    "/root": 0o755,
    "/home": 0o755,
    "/run": 0o755,
    "/var": 0o755,
    "/var/tmp": 0o1777,  # noqa: S108
    "/workspace": 0o777,
}


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A tree by the paths that a box sees. Files: bytes and mode."""

    directories: Mapping[str, int]
    symlinks: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    name: str = field(init=False)  # another one for whatever is laid out differently

    def __post_init__(self) -> None:
        """Name it after its content."""
        parts = (self.directories, self.symlinks, self.files)
        text = repr([sorted(part.items()) for part in parts])
        object.__setattr__(self, "name", hashlib.sha256(text.encode()).hexdigest()[:16])

    def build(self, top: Path, *, owner: int | None) -> None:
        """Lay it out in `top`, which must not be there, owned by `owner`. Raises OSError."""
        for place, mode in sorted(self.directories.items()):
            make_directory(_below(top, place), mode=mode)
        for place, target in self.symlinks.items():
            _below(top, place).symlink_to(target)
        for place, (data, mode) in self.files.items():
            _below(top, place).write_bytes(data)
            _below(top, place).chmod(mode)
        if owner is not None:
            for place in (*self.directories, *self.symlinks, *self.files):
                os.chown(_below(top, place), owner, owner, follow_symlinks=False)


def lay_out(
    *,
    directories: Sequence[str],
    files: Sequence[str],
    symlinks: Mapping[str, str] | None = None,
) -> Skeleton:
    """A root with these places to mount directories and files on.

    What leads to a place is passable for every user.
    """
    places = [*directories, *files]
    parents = {str(parent): 0o755 for place in places for parent in PurePosixPath(place).parents}
    points = dict.fromkeys(directories, 0o755)
    return Skeleton(
        directories=parents | points | _OWN_DIRECTORIES,
        symlinks=symlinks or {},
        files=dict.fromkeys(files, (b"", 0o644)),
    )


def _below(top: Path, place: str) -> Path:
    return top / place.lstrip("/")


class SkeletonShelf:
    """The skeletons of one installation. Blocking file access; call from a worker thread."""

    def __init__(self, directory: Path, *, owner: int | None) -> None:
        """owner: of all in them, None for whoever runs the daemon."""
        self.directory = directory
        self._owner = owner

    def open(self) -> None:
        """Make the directory, closed to strangers but passable for the owner. Raises OSError."""
        self.directory.mkdir(exist_ok=True)
        if self._owner is not None:
            os.chown(self.directory, -1, self._owner)
        self.directory.chmod(0o700 if self._owner is None else 0o710)

    def name(self, skeleton: Skeleton) -> str:
        """Its name below `directory`, whether or not it is there."""
        return f"{skeleton.name}-{self._owner or 0}"

    def ready(self, skeleton: Skeleton) -> None:
        """Build it unless it is there. Raises OSError."""
        place = self.directory / self.name(skeleton)
        if place.is_dir():
            return
        # Whole or not at all: a half of one would be taken for it after a crash.
        draft = self.directory / f".draft-{os.urandom(4).hex()}"
        try:
            skeleton.build(draft, owner=self._owner)
            draft.rename(place)
        except OSError:
            if not place.is_dir():  # else another box needed it at the same time
                raise
        finally:
            remove_tree(draft)

    def clear(self) -> None:
        """Remove them all; only when no box is left that may stand on one."""
        remove_tree(self.directory)
