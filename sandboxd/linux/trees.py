"""Directory trees: make them, measure them and remove them, hostile as they may have become.

What a sandbox wrote may be deep beyond any recursion, unreadable for its owner, and full of links;
nothing here follows a link, recurses, or builds a path from more than two names. Blocking; call
from a worker thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from secrets import token_hex

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512
# What a file counts at least: inodes run out too, and a file system has few of them for its size.
_LEAST_BYTES = 4096
_MAX_REMEMBERED = 100_000  # files with several names, of one walk
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_TOP_OF_TREES = 0x00020000  # FS_TOPDIR_FL, `chattr +T`
_AT_ONCE = 10_000  # names of one directory that a removal holds
_MAX_HELD = 128  # descriptors that one walk holds; from deeper down it finds its way back


def make_directory(path: Path, *, mode: int) -> None:
    """Make a directory of exactly that mode, whatever umask the daemon was started with."""
    path.mkdir(mode)
    if mode & (_umask() | stat.S_ISVTX):
        path.chmod(mode)


@cache
def _umask() -> int:
    """The process's own, which nobody changes once it runs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o777


def spread(directory: Path) -> None:
    """Ask for its directories to lie far apart on disk, where the file system knows of that.

    ext4 without a journal does not give an inode out again for a minute and more, and searches
    past all such whenever it makes a file near by: hundreds of short-lived trees in one corner of
    the disk would cost more time than all that is done in them.
    """
    fd = os.open(directory, _DIRECTORY)
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        (now,) = struct.unpack_from("i", flags)
        struct.pack_into("i", flags, 0, now | _TOP_OF_TREES)
        fcntl.ioctl(fd, _SET_FLAGS, flags)
    except OSError:
        pass  # another file system
    finally:
        os.close(fd)


def disk_usage(top: Path, *, enough_bytes: int) -> int:
    """Bytes that a tree takes on disk; stops counting once past `enough_bytes`. 0 if it is gone.

    An empty file counts as a block, and one with several names counts once.
    A directory that its owner closed is opened while it is measured, and closed again.
    """
    try:
        first = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return 0
    total = 0
    seen: set[tuple[int, int]] = set()
    stack = [_Visit(first, None)]
    try:
        while stack and total <= enough_bytes:
            visit = stack[-1]
            if visit.waiting is None:
                size, visit.waiting = _measure(visit.fd, seen)
                total += size
            if visit.waiting:
                with suppress(OSError):
                    stack.append(_enter(visit.fd, visit.waiting.pop()))
                    if len(stack) > _MAX_HELD:
                        visit.let_go()
                continue
            if len(stack) > 1:
                stack[-2].come_back(visit.fd)
            stack.pop().leave()
    except _Moved:
        pass  # by who wants not to be measured, or by chance: the next round sees more
    finally:
        for visit in stack:
            visit.leave()
    return total


class _Moved(Exception):
    """A directory is no longer where the walk came through."""


@dataclass(slots=True)
class _Visit:
    """A directory that a walk is in: its mode if that was changed, and the names still to enter."""

    fd: int  # -1 while it is let go
    mode: int | None
    waiting: list[str] | None = None
    inode: tuple[int, int] = (0, 0)

    def leave(self) -> None:
        if self.fd < 0:
            return
        if self.mode is not None:
            os.fchmod(self.fd, self.mode)
        os.close(self.fd)

    def let_go(self) -> None:
        """Close it for as long as the walk is below it."""
        self.inode = _inode(self.fd)
        os.close(self.fd)
        self.fd = -1

    def come_back(self, child: int) -> None:
        """Open it again from a directory in it. Raises _Moved if that lies elsewhere by now."""
        if self.fd >= 0:
            return
        try:
            fd = os.open("..", _DIRECTORY, dir_fd=child)
        except OSError:
            raise _Moved from None
        if _inode(fd) != self.inode:
            os.close(fd)
            raise _Moved
        self.fd = fd


def _inode(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


def _enter(directory: int, name: str) -> _Visit:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=directory)
        if os.access(f"/proc/self/fd/{fd}", os.X_OK, effective_ids=True):
            return _Visit(fd, None)
        os.close(fd)
    except PermissionError:
        pass
    return _Visit(*_force_open(directory, name))


def _measure(directory: int, seen: set[tuple[int, int]]) -> tuple[int, list[str]]:
    """Bytes of what lies directly in a directory, and the names of its own directories.

    seen: takes the files that have other names too.
    """
    total = 0
    directories = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if _is_known(facts, seen):
                continue
            total += max(facts.st_blocks * _BLOCK_BYTES, _LEAST_BYTES)
            if stat.S_ISDIR(facts.st_mode):
                directories.append(entry.name)
    return total, directories


def _is_known(facts: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    """Whether a file was met under another name."""
    if facts.st_nlink < 2 or stat.S_ISDIR(facts.st_mode):
        return False
    itself = (facts.st_dev, facts.st_ino)
    known = itself in seen
    if len(seen) < _MAX_REMEMBERED:
        seen.add(itself)
    return known


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


def remove_tree(top: Path, *, last: str = "") -> None:
    """Remove a directory and all in it; gone already is success. Raises OSError if some stays.

    Each directory found below that is not empty is first moved up to the top, so that depth never
    grows beyond two. last: the name of a file in `top` that goes after everything else.
    """
    try:
        root = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return
    moved = _fresh_names()
    try:
        while entries := _some_entries(root, but=last):
            for name, is_directory in entries:
                if not _remove_plain(root, name, is_directory=is_directory):
                    _remove_directory(root, name, moved)
        if last:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=root)
    finally:
        os.close(root)
    top.rmdir()


def _fresh_names() -> Iterator[str]:
    """Names that nobody has: neither a box, nor a removal that was broken off."""
    token = token_hex(8)
    return (f".removing-{token}-{serial}" for serial in count())


def _some_entries(directory: int, *, but: str = "") -> list[tuple[str, bool]]:
    """Names, and whether each is a directory; a part of them where there are very many."""
    with os.scandir(directory) as entries:
        wanted = ((each.name, each.is_dir(follow_symlinks=False)) for each in entries)
        return list(islice((each for each in wanted if each[0] != but), _AT_ONCE))


def _remove_plain(directory: int, name: str, *, is_directory: bool) -> bool:
    """Remove a file or an empty directory; False if it is a directory with something in it."""
    if not is_directory:
        os.unlink(name, dir_fd=directory)
        return True
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


def _remove_directory(root: int, name: str, moved: Iterator[str]) -> None:
    directory = _open_to_change(root, name)
    try:
        while entries := _some_entries(directory):
            for inner, is_directory in entries:
                if not _remove_plain(directory, inner, is_directory=is_directory):
                    _move_up(root, directory, inner, new=next(moved))
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)


def _open_to_change(directory: int, name: str) -> int:
    """A directory of ours, made passable and writable if it is not. Raises OSError."""
    with suppress(PermissionError):
        fd = os.open(name, _DIRECTORY, dir_fd=directory)
        if os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK, effective_ids=True):
            return fd
        os.close(fd)
    return _force_open(directory, name)[0]


def _move_up(root: int, directory: int, name: str, *, new: str) -> None:
    try:
        os.rename(name, new, src_dir_fd=directory, dst_dir_fd=root)
    except PermissionError:
        # To move a directory its owner must be able to write to it.
        os.close(_force_open(directory, name)[0])
        os.rename(name, new, src_dir_fd=directory, dst_dir_fd=root)
