"""Leases and runs in SQLite: one file, write-ahead log, one writer thread at a time.

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
from sandboxd.model.run import Run, RunKey
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode, Fault

SCHEMA_VERSION = 2
_LEASES = """
CREATE TABLE leases (id TEXT PRIMARY KEY, created_at REAL NOT NULL, record TEXT NOT NULL) STRICT;
"""
_RUNS = """
CREATE TABLE runs (
    owner TEXT NOT NULL, run_id TEXT NOT NULL, began_at REAL NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (owner, run_id)
) STRICT;
"""
_SCHEMA = _LEASES + _RUNS
# From version N to N + 1, applied after a copy was made.
_MIGRATIONS: dict[int, str] = {1: _RUNS}

_PUT = "INSERT OR REPLACE INTO leases VALUES (?, ?, ?)"
_LEASE = TypeAdapter(Lease)
_RUN = TypeAdapter(Run)
T = TypeVar("T")


class SqliteStore:
    """See `LeaseStore`."""

    def __init__(self, connection: sqlite3.Connection, metrics: Metrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._writer = CapacityLimiter(1)  # SQLite has one writer; this one is ours

    async def put(self, lease: Lease) -> None:
        """Write a record; committed when this returns."""
        row = _row(lease)
        await self._write(lambda: self._connection.execute(_PUT, row))

    async def put_all(self, leases: Iterable[Lease]) -> None:
        """Write several records in one transaction."""
        rows = [_row(lease) for lease in leases]
        await self._write(lambda: self._put_rows(rows))

    def _put_rows(self, rows: list[tuple[str, float, str]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_PUT, rows)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")
            raise

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records."""
        rows = [(lease_id,) for lease_id in ids]
        await self._write(
            lambda: self._connection.executemany("DELETE FROM leases WHERE id = ?", rows)
        )

    async def load(self) -> list[Lease]:
        """Every lease, oldest first."""
        return await self._load("SELECT record FROM leases ORDER BY created_at", _LEASE)

    async def put_run(self, run: Run) -> None:
        """Write a run; committed when this returns."""
        row = (run.owner, run.run_id, run.began_at, _RUN.dump_json(run).decode())
        await self._write(
            lambda: self._connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", row)
        )

    async def forget_runs(self, keys: Iterable[RunKey]) -> None:
        """Drop runs."""
        rows = list(keys)
        await self._write(
            lambda: self._connection.executemany(
                "DELETE FROM runs WHERE owner = ? AND run_id = ?", rows
            )
        )

    async def load_runs(self) -> list[Run]:
        """Every run, oldest first."""
        return await self._load("SELECT record FROM runs ORDER BY began_at", _RUN)

    async def _load(self, query: str, adapter: TypeAdapter[T]) -> list[T]:
        rows = await self._in_thread(lambda: self._connection.execute(query).fetchall())
        try:
            return [adapter.validate_json(text) for (text,) in rows]
        except ValidationError as error:
            raise SandboxdError(ErrorCode.INTERNAL, f"a stored record is damaged: {error}") from (
                error
            )

    async def _write(self, act: Callable[[], object]) -> None:
        with self._metrics.store_write.time():
            await self._in_thread(act)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(act, limiter=self._writer)
        except sqlite3.Error as error:
            raise _failed(error) from error


def _row(lease: Lease) -> tuple[str, float, str]:
    return (lease.id, lease.created_at, _LEASE.dump_json(lease).decode())


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
    copy.touch(mode=0o600)  # as closed to others as the store itself
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        for step in range(version, SCHEMA_VERSION):
            source.executescript(
                f"BEGIN; {_MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;"
            )
