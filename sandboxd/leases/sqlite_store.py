"""Leases in SQLite: one file, write-ahead log, one writer thread at a time.

`synchronous = NORMAL`: a commit survives the death of this process at any moment. A power cut may
lose the last ones, and takes the boxes with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from pydantic import TypeAdapter, ValidationError

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import Lease
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode, Fault

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE leases (id TEXT PRIMARY KEY, created_at REAL NOT NULL, record TEXT NOT NULL) STRICT;
"""
# From version N to N + 1, applied after a copy was made. None yet.
_MIGRATIONS: dict[int, str] = {}

_RECORD = TypeAdapter(Lease)
T = TypeVar("T")


class SqliteStore:
    """See `LeaseStore`."""

    def __init__(self, connection: sqlite3.Connection, metrics: Metrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._writer = CapacityLimiter(1)  # SQLite has one writer; this one is ours

    async def put(self, lease: Lease) -> None:
        """Write a record; committed when this returns."""
        text = _RECORD.dump_json(lease).decode()
        row = (lease.id, lease.created_at, text)
        await self._write(
            lambda: self._connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", row)
        )

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records."""
        rows = [(lease_id,) for lease_id in ids]
        await self._write(
            lambda: self._connection.executemany("DELETE FROM leases WHERE id = ?", rows)
        )

    async def load(self) -> list[Lease]:
        """Every record, oldest first."""
        query = "SELECT record FROM leases ORDER BY created_at"
        rows = await self._in_thread(lambda: self._connection.execute(query).fetchall())
        try:
            return [_RECORD.validate_json(text) for (text,) in rows]
        except ValidationError as error:
            raise SandboxdError(
                ErrorCode.INTERNAL, f"a lease record is damaged: {error}"
            ) from error

    async def _write(self, act: Callable[[], object]) -> None:
        with self._metrics.store_write.time():
            await self._in_thread(act)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(act, limiter=self._writer)
        except sqlite3.Error as error:
            raise _failed(error) from error


_NO_ROOM = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE"}


def _failed(error: sqlite3.Error) -> SandboxdError:
    """What a caller hears: nothing was written, and asking again is safe."""
    if getattr(error, "sqlite_errorname", "") in _NO_ROOM:
        return SandboxdError(
            ErrorCode.DISK_FULL,
            "the daemon's state directory has no room left: free some space there",
            fault=Fault.INFRA,
            mask=True,
            retry_safe=True,
        )
    return SandboxdError(ErrorCode.INTERNAL, f"the lease store failed: {error}")


@asynccontextmanager
async def open_sqlite_store(path: Path, metrics: Metrics) -> AsyncIterator[SqliteStore]:
    """Open the store, making or migrating it as needed.

    Raises `internal`, naming the mend, for a file that is damaged or from a newer version; such a
    file is left exactly as it was. `disk_full` where there is no room to open it.
    """
    try:
        connection = await to_thread.run_sync(_open, path)
    except sqlite3.Error as error:
        raise _failed(error) from error
    try:
        yield SqliteStore(connection, metrics)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(connection.close)


def _open(path: Path) -> sqlite3.Connection:
    if path.exists():
        _check(path)
    # autocommit, so that each statement is a whole transaction of its own
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    path.chmod(0o600)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _check(path: Path) -> None:
    """Look at an existing file without changing it, then copy and migrate an older one."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as looker:
            version = looker.execute("PRAGMA user_version").fetchone()[0]
            verdict = looker.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise SandboxdError(ErrorCode.INTERNAL, _damaged(path, str(error))) from error
    if verdict != "ok":
        raise SandboxdError(ErrorCode.INTERNAL, _damaged(path, str(verdict)))
    if version > SCHEMA_VERSION:
        raise SandboxdError(
            ErrorCode.INTERNAL,
            f"{path} was written by a newer sandboxd (store version {version}; this one knows "
            f"{SCHEMA_VERSION}): run that version, or give this one another --state-dir",
        )
    if 0 < version < SCHEMA_VERSION:
        _migrate(path, version)


def _damaged(path: Path, why: str) -> str:
    return (
        f"the lease store {path} is damaged ({why}): move it aside and start again; boxes whose "
        "leases it held are then removed as nobody's"
    )


def _migrate(path: Path, version: int) -> None:
    copy = path.with_name(f"{path.name}.version-{version}")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        for step in range(version, SCHEMA_VERSION):
            source.executescript(
                f"BEGIN; {_MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;"
            )
