"""The roll of runs: who is heard of, until when, and how their leases ended. Synchronous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.leases.book import Book
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.run import Run, RunKey, RunState
from sandboxd.wire.codes import EndReason, ErrorCode

MOST_RUNS = 10_000


class Entry:
    """A run on the roll.

    due: when it is lost unless it is heard of (monotonic, so that a clock that was set back
    lengthens nothing). written: what the store has of it.
    """

    __slots__ = ("due", "ended", "run", "written")

    def __init__(self, run: Run, *, written: Run | None = None) -> None:
        self.run = run
        self.written = written
        self.due = anyio.current_time() + run.ttl_s
        self.ended: Counter[EndReason] = Counter()

    def heard(self) -> None:
        """It has one whole ttl from now on."""
        self.due = anyio.current_time() + self.run.ttl_s


class Roll:
    """Every known run of this daemon, at most `MOST_RUNS`."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._entries: dict[RunKey, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, key: RunKey) -> Entry | None:
        """The run of that key, if it is known."""
        return self._entries.get(key)

    def named(self, run_id: str, *, owner: str | None) -> list[Entry]:
        """Runs of that name: one at most, but for owner None, who sees everybody's."""
        if owner is not None:
            found = self._entries.get((owner, run_id))
            return [] if found is None else [found]
        return [entry for entry in self if entry.run.run_id == run_id]

    def count(self, state: RunState) -> int:
        """How many are in that state."""
        return sum(entry.run.state is state for entry in self._entries.values())

    def enter(self, entry: Entry) -> None:
        """Add a run. Call `make_room` before."""
        self._entries[entry.run.key] = entry

    def count_ended(self, tenancy: Tenancy) -> None:
        """One of its leases has ended, if it has a known run."""
        lease = tenancy.lease
        entry = self._entries.get((lease.owner, lease.terms.run_id or ""))
        if entry is not None and lease.end is not None:
            entry.ended[lease.end.reason] += 1

    def strike(self, key: RunKey) -> None:
        """Forget a run. Unknown ones are nothing."""
        self._entries.pop(key, None)

    def make_room(self) -> RunKey | None:
        """Have room for one more; returns whom it struck for that: the run that was lost longest
        ago, of those without leases. Raises `capacity` where all are in use.
        """
        if len(self._entries) < MOST_RUNS:
            return None
        lost = [entry.run for entry in self if entry.run.state is RunState.LOST]
        for run in sorted(lost, key=lambda run: run.lost_at or 0.0):
            if not self._book.of_run(run.key):
                self.strike(run.key)
                return run.key
        raise SandboxdError(
            ErrorCode.CAPACITY,
            f"{len(self._entries)} runs are known, more may not be: end some with "
            "DELETE /v1/runs/{run_id}",
            retry_after_s=30.0,
        )
