"""The few system calls that Python 3.11 does not offer. Raises OSError; decides nothing."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MNT_DETACH = 2
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442
_SETGROUPS, _SETRESUID, _SETRESGID = (
    (116, 117, 119) if platform.machine() == "x86_64" else (159, 147, 149)
)

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    """`struct mount_attr`."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare_mounts() -> None:
    """Give the calling thread a mount namespace of its own, from which nothing spreads."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)


def mount_tmpfs(target: Path, options: str) -> None:
    """Mount a fresh tmpfs."""
    _mount("tmpfs", str(target), "tmpfs", 0, options)


def bind(source: Path, target: Path) -> None:
    """Bind source alone, without what is mounted below it, on an existing target."""
    _mount(str(source), str(target), None, _MS_BIND, None)


def unmount(target: Path) -> None:
    """Take a mount away now; what still uses it keeps it."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), str(target))


def bind_idmapped(source: Path, target: Path, *, userns_fd: int) -> None:
    """Bind source alone, its owners seen as the user namespace's own ids.

    Raises OSError (EINVAL) where the file system or the kernel cannot.
    """
    tree = _check(
        _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE), str(source)
    )
    try:
        attributes = _MountAttributes(attr_set=_MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        _check(
            _libc.syscall(
                _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size
            ),
            str(source),
        )
        _check(
            _libc.syscall(
                _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH
            ),
            str(target),
        )
    finally:
        os.close(tree)


@contextmanager
def thread_ids(first_id: int) -> Iterator[None]:
    """Act as the unprivileged user and group `first_id`, in the calling thread alone.

    The C library would change every thread of the process; the bare calls change one. Root stays
    the saved id to come back to; what is executed meanwhile loses it, as any `execve` does.
    """
    _check(_libc.syscall(_SETGROUPS, 0, None), "setgroups")
    _check(_libc.syscall(_SETRESGID, first_id, first_id, first_id), "setresgid")
    _check(_libc.syscall(_SETRESUID, first_id, first_id, 0), "setresuid")
    try:
        yield
    finally:
        _check(_libc.syscall(_SETRESUID, 0, 0, 0), "setresuid")
        _check(_libc.syscall(_SETRESGID, 0, 0, 0), "setresgid")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), data), target)
