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
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442
_SETGROUPS, _SETRESUID, _SETRESGID = (
    (116, 117, 119) if platform.machine() == "x86_64" else (159, 147, 149)
)

_PIVOT_ROOT = 155 if platform.machine() == "x86_64" else 41
_MOUNTS_OF_THREAD = "/proc/thread-self/ns/mnt"

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


def own_mounts() -> tuple[int, int]:
    """Give the calling thread a mount namespace of its own, from which nothing spreads.

    Returns descriptors of the one it left and of the new one.
    """
    before = os.open(_MOUNTS_OF_THREAD, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNS), "unshare")
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)
        return before, os.open(_MOUNTS_OF_THREAD, os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(before)
        raise


@contextmanager
def mounts_of(inside: int, *, back: int) -> Iterator[None]:
    """Stand in one mount namespace, at its root, with the calling thread alone; then in `back`.

    Only for a thread that once called `own_mounts`: others share their root with the process.
    """
    _check(_libc.setns(inside, _CLONE_NEWNS), "setns")
    try:
        yield
    finally:
        _check(_libc.setns(back, _CLONE_NEWNS), "setns")


def mount_tmpfs(target: Path, options: str) -> None:
    """Mount a fresh tmpfs."""
    _mount("tmpfs", str(target), "tmpfs", 0, options)


def make_root(target: Path) -> None:
    """Make a mount the root of the namespace, and let go of all other mounts in it."""
    os.chdir(target)
    # Onto itself: the old root then lies over the new one until it is taken away.
    _check(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def unmount(target: Path) -> None:
    """Take a mount away now; what still uses it keeps it."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), str(target))


def pick_tree(source: Path, *, recursive: bool = False, userns_fd: int | None = None) -> int:
    """A descriptor of a fresh mount of a directory, to be put somewhere by `put_tree`.

    recursive: with what is mounted below it. userns_fd: its owners are seen as the user
    namespace's own ids. Raises OSError (EINVAL) where the file system or the kernel cannot.
    """
    flags = _OPEN_TREE_CLONE | (_AT_RECURSIVE if recursive else 0)
    tree = _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags), str(source))
    os.set_inheritable(tree, False)  # noqa: FBT003 - the standard library's word
    if userns_fd is not None:
        attributes = _MountAttributes(attr_set=_MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        try:
            _check(
                _libc.syscall(
                    _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size
                ),
                str(source),
            )
        except OSError:
            os.close(tree)
            raise
    return tree


def put_tree(tree: int, target: Path) -> None:
    """Mount what `pick_tree` took on an existing directory. Closes the descriptor."""
    try:
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
