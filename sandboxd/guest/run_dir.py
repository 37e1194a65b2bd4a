"""Where the sockets of guests lie on this machine: short directories, one for each installation.

Knows neither boxes nor what else lies beside a socket.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_SHARED = Path("/run/sandboxd")  # root's, with a directory for each installation
_MOST_TRIES = 1000  # each costs microseconds, and a busy machine loses twenty in a row


def open_run_dir(run_dir: Path | None, installation: str) -> Path:
    """The short directory of this installation's sockets, made if need be.

    Raises `backend_unavailable` if it is somebody else's.
    """
    path = run_dir or default_run_dir(installation)
    mode = 0o711 if os.geteuid() == 0 else 0o700
    _make_below_shared(path, mode)
    facts = path.lstat()
    if facts.st_uid != os.geteuid() or path.is_symlink():
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"the run directory {path} belongs to user {facts.st_uid}; remove it or set another",
        )
    path.chmod(mode)
    return path


def close_run_dir(path: Path) -> None:
    """Take it away if it is empty, and what all installations share if this was the last."""
    with suppress(OSError):
        path.rmdir()
        if path.parent == _SHARED:
            _SHARED.rmdir()


def default_run_dir(installation: str) -> Path:
    """Where sockets lie if nobody says otherwise: short, since a socket's path is."""
    name = installation[:12]
    if os.geteuid() == 0:
        return _SHARED / name
    if own := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(own) / f"sandboxd-{name}"
    return Path("/tmp") / f"sandboxd-{os.geteuid()}-{name}"  # noqa: S108 - checked for its owner


def _make_below_shared(path: Path, mode: int) -> None:
    """Make a directory whose parent other installations share, and take away once it is empty:
    theirs may go in the very moment before ours comes.
    """
    for tries_left in reversed(range(_MOST_TRIES)):
        try:
            if not path.parent.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.parent.chmod(0o755)
            path.mkdir(mode=mode, exist_ok=True)
        except (FileNotFoundError, FileExistsError):  # pathlib looks again, and it is gone
            if tries_left == 0:
                raise
        else:
            return
