"""Where leases and runs are remembered: the seam, and the store in memory. SQLite is next door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sandboxd.model.lease import Lease
from sandboxd.model.run import Run, RunKey


class LeaseStore(Protocol):
    """Remembers leases and runs across a crash. Writes are whole: a record is there as given, or as
    before.

    Raises `disk_full` (fault infra) where nothing can be written, `internal` for a broken store.
    """

    async def put(self, lease: Lease) -> None:
        """Write a record; durable when this returns. Cancelled: it may or may not be written."""
        ...

    async def put_all(self, leases: Iterable[Lease]) -> None:
        """Write several records: all of them, or none where this raises."""
        ...

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records. Unknown ids are nothing."""
        ...

    async def load(self) -> list[Lease]:
        """Every lease, oldest first."""
        ...

    async def put_run(self, run: Run) -> None:
        """Write a run; as `put`."""
        ...

    async def forget_runs(self, keys: Iterable[RunKey]) -> None:
        """Drop runs. Unknown ones are nothing."""
        ...

    async def load_runs(self) -> list[Run]:
        """Every run, oldest first."""
        ...


class MemoryStore:
    """Remembers nothing beyond the process: for ephemeral daemons and tests."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._runs: dict[RunKey, Run] = {}

    async def put(self, lease: Lease) -> None:
        """Keep the record."""
        self._leases[lease.id] = lease

    async def put_all(self, leases: Iterable[Lease]) -> None:
        """Keep the records."""
        for lease in leases:
            self._leases[lease.id] = lease

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records."""
        for lease_id in ids:
            self._leases.pop(lease_id, None)

    async def load(self) -> list[Lease]:
        """Every lease, oldest first."""
        return sorted(self._leases.values(), key=lambda lease: lease.created_at)

    async def put_run(self, run: Run) -> None:
        """Keep the run."""
        self._runs[run.key] = run

    async def forget_runs(self, keys: Iterable[RunKey]) -> None:
        """Drop runs."""
        for key in keys:
            self._runs.pop(key, None)

    async def load_runs(self) -> list[Run]:
        """Every run, oldest first."""
        return sorted(self._runs.values(), key=lambda run: run.began_at)
