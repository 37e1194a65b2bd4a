"""Runs begin with their first heartbeat, and are lost when none came for their ttl.

A lost run's leases end, all but those that a scorer looks at; its name is refused until somebody
forgets the run. What must survive a crash is written down when it changes, never per heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting import Granting
from sandboxd.leases.runs.roll import Entry, Roll
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.model.run import Run, RunKey, RunState, RunStatus
from sandboxd.telemetry import audit
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import EndReason, ErrorCode

log = structlog.get_logger(__name__)

_DEAF_S = 1.0  # so late we were not listening ourselves, and what was said waits to be read


class Runs:
    """The runs of one daemon. A gate: leases of lost runs are turned away."""

    def __init__(self, office: BackOffice, *, granting: Granting, endings: Endings) -> None:
        self._office = office
        self._granting = granting
        self._roll = Roll(office.book)
        self._writing = anyio.Lock()  # one after the other, each writing what is true by then
        self._unwritten: set[RunKey] = set()
        self._ending: Counter[tuple[str | None, str]] = Counter()  # by who ends, None: everybody's
        endings.when_ended(self._roll.count_ended)

    def admit(self, order: LeaseOrder, *, owner: str, count: int) -> None:
        """Raises `conflict` for leases of a run that is lost, or being ended right now."""
        run_id = order.terms.run_id
        if run_id is None:
            return
        if self._ending[owner, run_id] or self._ending[None, run_id]:
            raise _being_ended(run_id)
        entry = self._roll.get((owner, run_id))
        if entry is not None and entry.run.state is RunState.LOST:
            raise _lost(entry.run)

    async def beat(self, run_id: str, *, ttl_s: float, owner: str) -> tuple[RunStatus, bool]:
        """A run is heard of, and has a whole ttl from now on; the first time it begins. Says also
        whether it began just now.

        That it began is on disk before this returns. Raises `conflict` for a lost run, `capacity`
        where there are too many, and what the store raises where it cannot begin.
        """
        key = (owner, run_id)
        entry = self._roll.get(key)
        if entry is None:
            return self._status(await self._begin(key, ttl_s=ttl_s)), True
        if entry.run.state is RunState.ACTIVE:
            if ttl_s != entry.run.ttl_s:
                entry.run = replace(entry.run, ttl_s=ttl_s)
            entry.heard()
            self._office.alarm.by(entry.due)
            if entry.written is None:
                await self._write(key)
                if self._roll.get(key) is not entry:  # its beginning failed meanwhile
                    return await self.beat(run_id, ttl_s=ttl_s, owner=owner)
            elif entry.run != entry.written:
                await self._write_if_possible(key)
        if entry.run.state is RunState.LOST:
            raise _lost(entry.run)
        return self._status(entry), False

    async def _begin(self, key: RunKey, *, ttl_s: float) -> Entry:
        struck = self._roll.make_room()
        owner, run_id = key
        now = self._office.clock.now()
        entry = Entry(Run(run_id=run_id, owner=owner, ttl_s=ttl_s, began_at=now))
        self._roll.enter(entry)
        self._office.alarm.by(entry.due)
        log.info("run.began", run_id=run_id, owner=owner, ttl_s=ttl_s)
        if struck is not None:
            await self._write_if_possible(struck)
        try:
            await self._write(key)
        except BaseException:
            if entry.written is None and self._roll.get(key) is entry:
                self._roll.strike(key)
            raise
        return entry

    def find(self, run_id: str, *, owner: str | None) -> RunStatus:
        """Raises `not_found` for a run that never beat, and for another key's."""
        found = self._roll.named(run_id, owner=owner)
        if not found:
            raise SandboxdError(
                ErrorCode.NOT_FOUND,
                "there is no such run, or it is not this key's: a run begins with its heartbeat",
                details={"run_id": run_id},
            )
        return self._status(max(found, key=lambda entry: entry.run.began_at))

    def select(self, *, owner: str | None, state: RunState) -> list[Run]:
        """An owner's runs in that state; None sees everybody's."""
        return [
            entry.run
            for entry in self._roll
            if entry.run.state is state and (owner is None or entry.run.owner == owner)
        ]

    def status(self, run: Run) -> RunStatus:
        """How a run of `select` stands, in the same moment."""
        entry = self._roll.get(run.key)
        assert entry is not None
        return self._status(entry)

    def leases_of(self, run_id: str, *, owner: str | None) -> list[Tenancy]:
        """Its leases that are not over, whether it ever beat or not."""
        if owner is not None:
            return self._office.book.of_run((owner, run_id))
        return [t for t in self._office.book.live() if t.lease.terms.run_id == run_id]

    @contextmanager
    def ending(self, run_id: str, *, owner: str | None) -> Iterator[list[Tenancy]]:
        """While its leases are released: those that are not over, whether it ever beat or not. No
        new ones come to it meanwhile, so that none survives that was asked for before the answer.
        """
        self._ending[owner, run_id] += 1
        try:
            yield self.leases_of(run_id, owner=owner)
        finally:
            self._ending[owner, run_id] -= 1
            if not self._ending[owner, run_id]:
                del self._ending[owner, run_id]

    async def forget(self, run_id: str, *, owner: str | None) -> None:
        """Make its name free again; the next heartbeat begins a run. Unknown ones are nothing."""
        for entry in self._roll.named(run_id, owner=owner):
            self._roll.strike(entry.run.key)
            log.info("run.forgotten", run_id=run_id, owner=entry.run.owner)
            await self._write_if_possible(entry.run.key)

    # What the reaper and adoption ask of it.

    def look(self, now: float) -> float:
        """Lose the runs that are due, synchronously; returns when to look again (monotonic)."""
        next_due = float("inf")
        for entry in self._roll:
            if entry.run.state is not RunState.ACTIVE:
                continue
            if now >= entry.due + _DEAF_S:
                entry.heard()
            elif now >= entry.due:
                self._lose(entry)
                continue
            next_due = min(next_due, entry.due)
        return next_due

    async def load(self) -> None:
        """Take the runs of the last daemon; each active one has one whole ttl from now on.

        Raises what the store raises.
        """
        for run in await self._office.store.load_runs():
            self._roll.enter(Entry(run, written=run))

    def start_clocks(self) -> None:
        """Once the leases of the last daemon are adopted: end those of runs that were lost."""
        for tenancy in self._office.book:
            self._roll.count_ended(tenancy)
        for entry in self._roll:
            entry.heard()
            if entry.run.state is RunState.LOST:
                self._end_leases(entry.run)

    async def write_again(self) -> None:
        """Write what a full store refused. Raises what the store raises, if it still does."""
        for key in list(self._unwritten):
            await self._write(key)

    def count(self, state: RunState) -> int:
        """How many runs are in that state."""
        return self._roll.count(state)

    def _lose(self, entry: Entry) -> None:
        now = self._office.clock.now()
        entry.run = run = replace(entry.run, state=RunState.LOST, lost_at=now)
        status = self._status(entry)
        self._office.events.tell(
            EventType.RUN_LOST,
            owner=run.owner,
            run_id=run.run_id,
            ttl_s=run.ttl_s,
            leased=status.leased,
            queued=status.queued,
        )
        log.warning("run.lost", run_id=run.run_id, owner=run.owner, ttl_s=run.ttl_s)
        audit.act("lose_run", who="sandboxd", owner=run.owner, run_id=run.run_id)
        self._end_leases(run)
        self._office.start(self._write_if_possible, run.key, name=f"run-{run.run_id}")

    def _end_leases(self, run: Run) -> None:
        detail = f"run {run.run_id} was not heard of for its ttl, {run.ttl_s:g} s"
        for tenancy in self._office.book.of_run(run.key):
            if tenancy.lease.phase is not Phase.GRADING:
                self._granting.abandon(tenancy, EndReason.RUN_LOST, detail=detail)

    def _status(self, entry: Entry) -> RunStatus:
        run = entry.run
        leases = self._office.book.of_run(run.key)
        leased = sum(tenancy.shown().state is LeaseState.LEASED for tenancy in leases)
        left_s = entry.due - anyio.current_time()
        expires_at = run.lost_at if run.lost_at is not None else self._office.clock.now() + left_s
        return RunStatus(
            run=run,
            expires_at=expires_at,
            leased=leased,
            queued=len(leases) - leased,
            ended=dict(entry.ended),
        )

    async def _write(self, key: RunKey) -> None:
        """Have the store know what is true of a run by now."""
        self._unwritten.add(key)
        async with self._writing:
            entry = self._roll.get(key)
            if entry is None:
                await self._office.store.forget_runs([key])
            elif entry.run != entry.written:
                run = entry.run
                await self._office.store.put_run(run)
                entry.written = run
            self._unwritten.discard(key)

    async def _write_if_possible(self, key: RunKey) -> None:
        """What is true stays true if the store has no room for it; it is written later."""
        try:
            await self._write(key)
        except SandboxdError as error:
            log.error("store.failed", run_id=key[1], error=str(error))


def _being_ended(run_id: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.CONFLICT,
        f"run {run_id!r} is being ended right now; once that is answered its name is free again",
        details={"run_id": run_id},
    )


def _lost(run: Run) -> SandboxdError:
    return SandboxdError(
        ErrorCode.CONFLICT,
        f"run {run.run_id!r} is lost: it was not heard of for {run.ttl_s:g} s, and its leases have "
        f"ended. DELETE /v1/runs/{run.run_id} makes the name free again",
        details={"run_id": run.run_id, "state": run.state, "lost_at": run.lost_at},
    )
