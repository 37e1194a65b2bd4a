"""Every lease store: memory and SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.leases.store import LeaseStore, MemoryStore
from sandboxd.telemetry.metrics import Metrics
from tests.conftest import Loop, asyncio_loop


@pytest.fixture
def anyio_backend() -> Loop:
    """SQLite's thread waits in real time."""
    return asyncio_loop()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeaseStore]:
    """An empty store."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with open_sqlite_store(tmp_path / "leases.db", Metrics()) as opened:
        yield opened
