"""Where leases are remembered: the seam, and the store in memory. SQLite is next door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sandboxd.model.lease import Lease


class LeaseStore(Protocol):
    """Remembers leases across a crash. Writes are whole: a record is there as given, or as before.

    Raises `disk_full` (fault infra) where nothing can be written, `internal` for a broken store.
    """

    async def put(self, lease: Lease) -> None:
        """Write a record; durable when this returns. Cancelled: it may or may not be written."""
        ...

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records. Unknown ids are nothing."""
        ...

    async def load(self) -> list[Lease]:
        """Every record, oldest first."""
        ...


class MemoryStore:
    """Remembers nothing beyond the process: for ephemeral daemons and tests."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    async def put(self, lease: Lease) -> None:
        """Keep the record."""
        self._leases[lease.id] = lease

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop records."""
        for lease_id in ids:
            self._leases.pop(lease_id, None)

    async def load(self) -> list[Lease]:
        """Every record, oldest first."""
        return sorted(self._leases.values(), key=lambda lease: lease.created_at)
