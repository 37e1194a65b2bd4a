"""Directory trees: make them, measure them and remove them, hostile as they may have become.

What a sandbox wrote may be deep beyond any recursion, unreadable for its owner, and full of links;
nothing here follows a link, recurses, or builds a path from more than two names. Blocking; call
from a worker thread.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512
_MAX_DEPTH = 128  # descriptors that one walk may hold; what lies deeper is not measured


def make_directory(path: Path, *, mode: int) -> None:
    """Make a directory of exactly that mode, whatever umask the daemon was started with."""
    path.mkdir()
    path.chmod(mode)


def disk_usage(top: Path, *, enough_bytes: int) -> int:
    """Bytes that a tree takes on disk; stops counting once past `enough_bytes`. 0 if it is gone.

    A directory that its owner closed is opened while it is measured, and closed again.
    """
    try:
        first = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return 0
    total = 0
    stack = [_Visit(first, None)]
    try:
        while stack:
            visit = stack[-1]
            if visit.waiting is None:
                size, visit.waiting = _measure(visit.fd)
                total += size
            if not visit.waiting or total > enough_bytes or len(stack) > _MAX_DEPTH:
                stack.pop().leave()
                continue
            with suppress(OSError):
                stack.append(_enter(visit.fd, visit.waiting.pop()))
    finally:
        for visit in stack:
            visit.leave()
    return total


@dataclass(slots=True)
class _Visit:
    """A directory that a walk is in: its mode if that was changed, and the names still to enter."""

    fd: int
    mode: int | None
    waiting: list[str] | None = None

    def leave(self) -> None:
        if self.mode is not None:
            os.fchmod(self.fd, self.mode)
        os.close(self.fd)


def _enter(directory: int, name: str) -> _Visit:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=directory)
        if os.access(f"/proc/self/fd/{fd}", os.X_OK, effective_ids=True):
            return _Visit(fd, None)
        os.close(fd)
    except PermissionError:
        pass
    return _Visit(*_force_open(directory, name))


def _measure(directory: int) -> tuple[int, list[str]]:
    """Bytes of what lies directly in a directory, and the names of its own directories."""
    total = 0
    directories = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            total += facts.st_blocks * _BLOCK_BYTES
            if stat.S_ISDIR(facts.st_mode):
                directories.append(entry.name)
    return total, directories


def _force_open(directory: int, name: str) -> tuple[int, int]:
    """A directory of ours, opened after it was made passable; and the mode it had.

    Raises OSError.
    """
    handle = os.open(name, _HANDLE, dir_fd=directory)
    try:
        itself = f"/proc/self/fd/{handle}"
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.chmod(itself, mode | stat.S_IRWXU)  # noqa: PTH101 - a descriptor, not a path
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode
    finally:
        os.close(handle)


def remove_tree(top: Path) -> None:
    """Remove a directory and all in it; gone already is success. Raises OSError if some stays.

    Each directory found below is first moved up to the top, so that depth never grows beyond two.
    """
    try:
        root = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        serial = _empty(root, root, serial=0)
        while directories := _directories(root):
            for name in directories:
                serial = _remove_directory(root, name, serial=serial)
    finally:
        os.close(root)
    top.rmdir()


def _directories(root: int) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _remove_directory(root: int, name: str, *, serial: int) -> int:
    directory, _ = _force_open(root, name)
    try:
        serial = _empty(root, directory, serial=serial)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)
    return serial


def _empty(root: int, directory: int, *, serial: int) -> int:
    """Unlink the files of a directory and move its directories to the root under fresh names."""
    for name in os.listdir(directory):
        try:
            os.unlink(name, dir_fd=directory)
        except (IsADirectoryError, PermissionError):
            if directory == root:
                continue
            serial += 1
            _move_up(root, directory, name, serial=serial)
    return serial


def _move_up(root: int, directory: int, name: str, *, serial: int) -> None:
    new = f".removing-{serial}-{os.getpid()}"
    try:
        os.rename(name, new, src_dir_fd=directory, dst_dir_fd=root)
    except PermissionError:
        # To move a directory its owner must be able to write to it.
        os.close(_force_open(directory, name)[0])
        os.rename(name, new, src_dir_fd=directory, dst_dir_fd=root)
