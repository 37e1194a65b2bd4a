"""What a store file may be when the daemon starts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.errors import SandboxdError
from sandboxd.leases import sqlite_store
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.model.lease import Lease, LeaseState, LeaseTerms
from sandboxd.model.run import Run
from sandboxd.model.template import BoxSpec
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


VERSION_1 = """
CREATE TABLE leases (id TEXT PRIMARY KEY, created_at REAL NOT NULL, record TEXT NOT NULL) STRICT;
PRAGMA user_version = 1;
"""
# As version 1 wrote it, to the letter.
LEASE_OF_VERSION_1 = (
    '{"id":"sbx-1","owner":"tests","terms":{"template":"python","spec":{"image":"host"},'
    '"env":{"A":"b"},"run_id":"r","timeout_s":60.0},"state":"leased","created_at":1.5,'
    '"backend":"fake","phase":"rollout","box":{"backend":"fake","box_id":"box-1","details":{}}}'
)


@pytest.fixture
def of_version_1(tmp_path: Path) -> Path:
    """A store that a daemon of version 1 left, killed in the middle: its log is there still."""
    path = tmp_path / "leases.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(VERSION_1)
    connection.execute("INSERT INTO leases VALUES (?, ?, ?)", ("sbx-1", 1.5, LEASE_OF_VERSION_1))
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("leases.db", "leases.db-wal"):
        (killed / name).write_bytes((tmp_path / name).read_bytes())
    connection.close()
    return killed / "leases.db"


async def test_an_older_store_is_copied_then_migrated(of_version_1: Path) -> None:
    path = of_version_1
    run = Run(run_id="r", owner="tests", ttl_s=30, began_at=2.0)
    for _ in range(2):  # the second time there is nothing left to do
        async with open_sqlite_store(path, Metrics()) as store:
            (lease,) = await store.load()
            assert (lease.id, lease.terms.run_id, lease.terms.timeout_s) == ("sbx-1", "r", 60)
            assert await store.load_runs() in ([], [run])
            await store.put_run(run)
    copy = path.with_name("leases.db.version-1")
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert connection.execute("SELECT id FROM leases").fetchall() == [("sbx-1",)]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert tables.fetchall() == [("leases",)]


async def test_a_migration_that_was_cut_is_done_again(
    of_version_1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {1: "CREATE TABLE runs (half TEXT) STRICT; SELECT no_such_thing();"}
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, "_MIGRATIONS", broken)
        with pytest.raises(SandboxdError):
            async with open_sqlite_store(of_version_1, Metrics()):
                pass
    async with open_sqlite_store(of_version_1, Metrics()) as store:
        assert len(await store.load()) == 1
        assert await store.load_runs() == []


async def test_a_migrated_store_has_the_tables_of_a_new_one(
    of_version_1: Path, tmp_path: Path
) -> None:
    schemas = []
    for path in (of_version_1, tmp_path / "new.db"):
        async with open_sqlite_store(path, Metrics()):
            pass
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name")
            schemas.append((found.fetchall(), connection.execute("PRAGMA user_version").fetchone()))
    assert schemas[0] == schemas[1]


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


async def test_of_records_that_are_written_together_none_is_there_if_one_cannot_be(
    tmp_path: Path,
) -> None:
    terms = LeaseTerms(template="python", spec=BoxSpec(image="host"))
    lease = Lease(
        id="sbx-1",
        owner="tests",
        terms=terms,
        state=LeaseState.LEASED,
        created_at=1.0,
        backend="fake",
    )
    async with open_sqlite_store(tmp_path / "leases.db", Metrics()) as store:
        await store.put(lease)
        bad = replace(lease, id="sbx-bad", created_at=float("nan"))  # no number, to SQLite
        with pytest.raises(SandboxdError):
            await store.put_all([replace(lease, id="sbx-2"), bad])
        assert await store.load() == [lease]
        await store.put_all([replace(lease, id="sbx-3")])  # the store works on
        assert len(await store.load()) == 2
