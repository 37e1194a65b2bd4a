"""What a store file may be when the daemon starts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sandboxd.errors import SandboxdError
from sandboxd.leases import sqlite_store
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio


async def test_a_store_from_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    async with open_sqlite_store(path, Metrics()):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {sqlite_store.SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(SandboxdError, match="newer sandboxd"):
        async with open_sqlite_store(path, Metrics()):
            pass
    assert path.read_bytes() == before


async def test_an_older_store_is_copied_then_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "leases.db"
    async with open_sqlite_store(path, Metrics()):
        pass
    old = sqlite_store.SCHEMA_VERSION
    monkeypatch.setattr(sqlite_store, "SCHEMA_VERSION", old + 1)
    monkeypatch.setattr(
        sqlite_store, "_MIGRATIONS", {old: "CREATE TABLE more (x) STRICT;"[:21] + ";"}
    )
    async with open_sqlite_store(path, Metrics()):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == old + 1
        connection.execute("SELECT * FROM more")
    assert path.with_name(f"leases.db.version-{old}").exists()


@pytest.mark.parametrize(
    "damage", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
async def test_a_damaged_store_is_refused_with_the_mend_and_left_as_it_is(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "leases.db"
    path.write_bytes(damage)
    with pytest.raises(SandboxdError, match="move it aside"):
        async with open_sqlite_store(path, Metrics()):
            pass
    assert path.read_bytes() == damage


async def test_the_store_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    async with open_sqlite_store(path, Metrics()):
        assert path.stat().st_mode & 0o777 == 0o600
