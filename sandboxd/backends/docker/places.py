"""Directories: one per box, which it shares with us, and the guest's executable for all of them.

A box's directory begins before its container and goes after it, so that whatever crashes in
between, the box is found by the one or the other. It lies on disk, where what a box writes into it
counts, and not in the run directory: that is often memory, and small, and the whole machine's.
Blocking file access; call from a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from sandboxd.errors import SandboxdError
from sandboxd.guest.inside import MAX_SOCKET_PATH_BYTES, SOCKET_NAME
from sandboxd.guest.run_dir import close_run_dir
from sandboxd.linux.trees import remove_tree, spread
from sandboxd.wire.codes import ErrorCode

_BOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class Places:
    """Where things of one installation lie."""

    def __init__(self, *, run_dir: Path, home: Path, owner: tuple[int, int] | None = None) -> None:
        """owner: user and group id of a box's root, where the engine maps it to another one."""
        self._run_dir = run_dir
        self._short = run_dir / "b"  # leads to all directories, by a path fit for sockets
        self._home = home
        self._boxes = home / "boxes"
        self._owner = owner

    def open(self) -> None:
        """Make what all boxes share. Raises OSError."""
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._boxes.mkdir(mode=0o711, exist_ok=True)
        spread(self._boxes)
        if self._short.is_symlink() and self._short.readlink() == self._boxes:
            return
        self._short.unlink(missing_ok=True)
        self._short.symlink_to(self._boxes)

    def bring_guest(self, binary: Path) -> Path:
        """The guest's executable, at a place whose contents never change. Raises OSError.

        A copy: what `binary` names may be replaced by an update while boxes run it, and a run
        directory is often mounted so that nothing in it can be executed.
        """
        data = binary.read_bytes()
        place = self._home / f"guest-{hashlib.sha256(data).hexdigest()[:16]}"
        if not place.exists():
            draft = self._home / "guest.new"
            draft.write_bytes(data)
            draft.chmod(0o755)
            draft.replace(place)
        for old in self._home.glob("guest-*"):
            if old != place:  # boxes that run it hold it open
                old.unlink()
        return place

    def shared(self, box_id: str) -> Path:
        """The directory of a box, existing or not. Raises `bad_request` for an unfit id."""
        if _BOX_ID.match(box_id) is None:
            raise SandboxdError(ErrorCode.BAD_REQUEST, f"{box_id!r} cannot name a box")
        return self._boxes / box_id

    def socket(self, box_id: str) -> Path:
        """The guest's socket, by the short way."""
        return self._short / self.shared(box_id).name / SOCKET_NAME

    def create(self, box_id: str) -> Path:
        """Make the directory of a new box. Raises `conflict` if there is one already, OSError."""
        path = self.shared(box_id)
        if len(os.fsencode(self.socket(box_id))) > MAX_SOCKET_PATH_BYTES:
            raise SandboxdError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"the socket path {self.socket(box_id)} is too long: set a shorter run directory",
            )
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            raise conflict(box_id) from None
        if self._owner is not None:
            os.chown(path, *self._owner)
        return path

    def list_ids(self) -> list[str]:
        """Every box that has a directory."""
        with suppress(FileNotFoundError):
            return sorted(
                entry.name
                for entry in os.scandir(self._boxes)
                if entry.is_dir(follow_symlinks=False) and _BOX_ID.match(entry.name)
            )
        return []

    def remove(self, box_id: str) -> None:
        """Remove a box's directory, whatever the box left in it. Gone already is success."""
        remove_tree(self.shared(box_id))

    def close(self) -> None:
        """Take away the short way if no box is left, and what is empty then."""
        with suppress(OSError):
            self._boxes.rmdir()
            self._short.unlink(missing_ok=True)
        close_run_dir(self._run_dir)


def conflict(box_id: str) -> SandboxdError:
    """There is such a box already."""
    return SandboxdError(ErrorCode.CONFLICT, f"there is a box {box_id} already")


def free_bytes(path: Path) -> int | None:
    """What is free on the disk of a path; None where it is not to be seen from here."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
