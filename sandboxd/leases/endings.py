"""How leases end: once, for a reason, with a record before the box goes and one after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import anyio
import structlog

from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.lease import End, LeaseState
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import END_VERDICTS, EndReason, Verdict

log = structlog.get_logger(__name__)

_READ_S = 2.0
_TOLD_CHARS = 1000  # of a detail in an event: a hundred thousand of them are kept


class Endings:
    """Ends leases. Decides synchronously; disposal and records follow in the background."""

    def __init__(self, office: BackOffice) -> None:
        self._office = office
        self._unwritten: set[Tenancy] = set()  # ends that the store had no room for
        self._listeners: list[Callable[[Tenancy], None]] = []

    def when_ended(self, call: Callable[[Tenancy], None]) -> None:
        """Have something called, synchronously, with each lease that ends and can be asked for."""
        self._listeners.append(call)

    def died(self, death: Death) -> None:
        """A box is dead: so is its lease."""
        tenancy = self._office.book.of_box(death.box_id)
        if tenancy is not None and not tenancy.lease.over:
            code = END_VERDICTS[death.reason].code
            verdict = Verdict(code, death.fault, death.mask)
            self.end(tenancy, death.reason, detail=death.detail, verdict=verdict)
            tenancy.note("died", evidence=dict(death.evidence))
        for pool in self._office.house.pools.values():
            pool.died(death)

    def end(
        self,
        tenancy: Tenancy,
        reason: EndReason,
        *,
        detail: str = "",
        verdict: Verdict | None = None,
    ) -> None:
        """End a lease, once; the first reason stands. Its box is disposed of in the background."""
        if tenancy.lease.over or not self._office.open:
            return
        end = self.end_record(reason, verdict or END_VERDICTS[reason], detail)
        leased_s = end.at - (tenancy.lease.leased_at or end.at)
        tenancy.close_way_out()
        usage = tenancy.used(leased_s=leased_s)
        tenancy.change(state=LeaseState.ENDING, end=end, usage=usage)
        tenancy.settled.set()
        tenancy.pool.experience.held(leased_s)
        self._make_known(tenancy)
        log.info(
            "lease.ended",
            sandbox_id=tenancy.lease.id,
            box_id=None if tenancy.box is None else tenancy.box.box_id,
            reason=reason,
            detail=detail,
        )
        self._office.start(self._finish, tenancy, name=f"finish-{tenancy.lease.id}")

    def end_queued(
        self, tenancy: Tenancy, reason: EndReason, verdict: Verdict, detail: str
    ) -> None:
        """End one that never had a box. Whoever knows its id can see how; else it leaves no trace,
        so that it may be asked for again.
        """
        end = self.end_record(reason, verdict, detail)
        tenancy.change(state=LeaseState.ENDED, end=end)
        tenancy.rest()
        tenancy.settled.set()
        self._office.slots.drop(tenancy.lease.id)
        tenancy.gone.set()
        self._make_known(tenancy)
        if tenancy.told and self._office.open:
            self._office.start(self._record, tenancy, name=f"record-{tenancy.lease.id}")
        else:
            self._office.book.strike(tenancy)
            tenancy.recorded.set()

    def end_record(self, reason: EndReason, verdict: Verdict, detail: str) -> End:
        """What is written of an end that comes now."""
        return End(
            reason=reason,
            code=verdict.code,
            fault=verdict.fault,
            mask=verdict.mask,
            detail=detail,
            at=self._office.clock.now(),
        )

    def _make_known(self, tenancy: Tenancy) -> None:
        """Diary, events, counters: all from the one record."""
        end = tenancy.lease.end
        assert end is not None
        tenancy.note("ended", reason=end.reason, detail=end.detail)
        if tenancy.known:
            told = {**asdict(end), "detail": end.detail[:_TOLD_CHARS]}
            tenancy.tell(self._office.events, EventType.LEASE_ENDED, end=told)
            for listener in self._listeners:
                listener(tenancy)
        self._office.metrics.sandboxes_ended.labels(tenancy.lease.terms.template, end.reason).inc()
        if end.code is not None and end.fault is not None:
            self._office.metrics.faults.labels(end.fault, end.code).inc()

    async def _finish(self, tenancy: Tenancy) -> None:
        """After the end: last readings, the record, and the box."""
        box, gone = tenancy.box, None
        if box is not None:
            await self._last_readings(tenancy)
            await self._record(tenancy)
            gone = tenancy.pool.give_up(box)
        await self._close_out(tenancy, gone)

    def unwrite(self, tenancy: Tenancy) -> None:
        """Have the store forget a lease that was struck from the book after its end was written."""
        if self._office.open:
            self._office.start(self._record, tenancy, name=f"unwrite-{tenancy.lease.id}")

    def close_out(self, tenancy: Tenancy, box_gone: anyio.Event | None) -> None:
        """Finish an ending that an earlier daemon began and wrote down."""
        if box_gone is None:  # as for thousands of the last hour: no task for each
            _put_to_rest(tenancy)
            tenancy.gone.set()
            return
        name = f"finish-{tenancy.lease.id}"
        self._office.start(self._close_out, tenancy, box_gone, name=name)

    async def _close_out(self, tenancy: Tenancy, box_gone: anyio.Event | None) -> None:
        if box_gone is not None:
            await box_gone.wait()
        self._office.slots.drop(tenancy.lease.id)
        _put_to_rest(tenancy)
        # That the box is gone need not be written: whoever reads `ending` looks for the box.
        if not tenancy.recorded.is_set():
            await self._record(tenancy)
        tenancy.gone.set()

    async def _last_readings(self, tenancy: Tenancy) -> None:
        assert tenancy.lease.box is not None
        with anyio.move_on_after(_READ_S):
            try:
                seen = await self._office.backend.read(tenancy.lease.box)
            except SandboxdError:
                return
            usage = replace(
                tenancy.lease.usage,
                cpu_s=seen.cpu_s,
                memory_peak_bytes=seen.memory_peak_bytes,
                disk_bytes=seen.disk_bytes,
            )
            tenancy.change(usage=usage)

    async def _record(self, tenancy: Tenancy) -> None:
        """Write how it stands. A full store keeps the lease as it was, until `write_again`; after a
        crash before that, its box is looked for, found gone, and the lease ended again.
        """
        try:
            await self._write(tenancy)
        except SandboxdError as error:
            log.error("store.failed", sandbox_id=tenancy.lease.id, error=str(error))
            self._unwritten.add(tenancy)
        tenancy.recorded.set()

    async def _write(self, tenancy: Tenancy) -> None:
        """One that was struck leaves no row."""
        if tenancy in self._office.book:
            await self._office.store.put(tenancy.lease)
        else:
            await self._office.store.forget([tenancy.lease.id])
        self._unwritten.discard(tenancy)

    async def write_again(self) -> None:
        """Write what could not be written. Raises what the store raises, if it still cannot."""
        for tenancy in list(self._unwritten):
            await self._write(tenancy)


def _put_to_rest(tenancy: Tenancy) -> None:
    if tenancy.lease.state is LeaseState.ENDING:
        tenancy.change(state=LeaseState.ENDED)
        tenancy.rest()
