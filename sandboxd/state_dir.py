"""The state directory: one daemon at a time, one installation's identity, one secret."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault

OPERATOR_PREFIX = "sbo-"
_INSTALLATION_BYTES = 6
_SECRET = "token.key"  # noqa: S105 - a file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDir:
    """An opened and locked state directory. installation: marks every box that is ours."""

    path: Path
    installation: str
    token_secret: bytes = field(repr=False)

    _lock: int = field(repr=False)

    def announce(self, url: str) -> None:
        """Say where the daemon that holds this directory listens, to whoever may read it."""
        _write_holder(self._lock, url)

    @property
    def operator_key(self) -> str:
        """What whoever may read this directory can show the daemon that holds it."""
        return operator_key(self.token_secret)

    @property
    def store(self) -> Path:
        """The lease store's file."""
        return self.path / "leases.db"


@contextmanager
def hold_state_dir(path: Path, *, installation: str = "") -> Iterator[StateDir]:
    """Make the directory if needed and hold its lock. Blocking; used once, at start.

    installation: its name, for good; empty: the one that it has, or a new one.

    Raises `conflict` where another daemon holds it, `bad_request` where it has another name,
    `disk_full` or `internal` where it cannot be written, each with the mend.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o711)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxdError(
            ErrorCode.INTERNAL,
            f"state directory {path} cannot be used ({error.strerror}): give another --state-dir",
        ) from error
    try:
        _lock(lock, path)
        yield StateDir(
            path=path,
            installation=_installation(path, installation),
            token_secret=_kept(path / _SECRET, lambda: secrets.token_bytes(32)),
            _lock=lock,
        )
    finally:
        os.close(lock)


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, _, url = os.pread(lock, 4096, 0).decode(errors="replace").partition("\n")
        raise SandboxdError(
            ErrorCode.CONFLICT,
            f"another daemon (process {pid}) holds {path}: stop it, or give another --state-dir",
            details={"pid": pid, "url": url.strip()},
        ) from None
    _write_holder(lock, "")


def _write_holder(lock: int, url: str) -> None:
    """For people and `sweep`. It is the lock that counts, which a full disk does not take away."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n{url}\n".encode(), 0)


def operator_key(secret: bytes) -> str:
    """Derived from the directory's secret: to read the file is to be its operator."""
    return OPERATOR_PREFIX + hmac.new(secret, b"operator", hashlib.sha256).hexdigest()


def read_operator_key(path: Path) -> str:
    """The same, for a program beside the daemon. Raises OSError for who may not read it."""
    return operator_key((path / _SECRET).read_bytes())


def _installation(path: Path, wanted: str) -> str:
    kept = _kept(path / "installation", lambda: wanted.encode() or _new_installation()).decode()
    if wanted and kept != wanted:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST,
            f"state directory {path} is that of installation {kept}, not of {wanted}: take "
            "`installation` (or SANDBOXD_INSTALLATION) away, or give another --state-dir",
        )
    return kept


def _new_installation() -> bytes:
    return secrets.token_hex(_INSTALLATION_BYTES).encode()


def _kept(file: Path, make: Callable[[], bytes]) -> bytes:
    """The file's content, made once; whole or not at all, whenever we are killed."""
    if file.exists() and (content := file.read_bytes()):
        return content
    content = make()
    fresh = file.with_name(file.name + ".new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        raise SandboxdError(
            ErrorCode.DISK_FULL,
            f"{file.parent} cannot be written ({error.strerror}): free some space there",
            fault=Fault.INFRA,
            mask=True,
        ) from error
    return content
