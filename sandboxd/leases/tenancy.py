"""A lease while the daemon runs: its record, and what only memory holds. Changed synchronously."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from sandboxd.clock import Clock
from sandboxd.egress.passage import Traffic
from sandboxd.egress.way_out import WayOut
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.box import BoxState
from sandboxd.model.lease import NEXT_STATES, Lease, LeaseState, Phase, Usage
from sandboxd.model.way_out import Headers
from sandboxd.pool.admission import Ticket
from sandboxd.pool.stock import Box
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.telemetry import spans
from sandboxd.telemetry.events import Events, EventType
from sandboxd.wire.codes import EndReason, ErrorCode

if TYPE_CHECKING:
    from sandboxd.leases.granting.group import Group

_DIARY_ENTRIES = 1000
_WARN_S = 60.0  # before the hard end, or a tenth of the life if that is less


class Tenancy:
    """One lease in the book.

    hard_at, used_at: the monotonic clock, like all deadlines here. settled: it is leased or over.
    recorded: its end is in the store. gone: its box is gone.
    """

    def __init__(
        self, lease: Lease, *, pool: WarmPool, clock: Clock, order: LeaseOrder | None = None
    ) -> None:
        self.lease = lease
        self.pool = pool
        self.order = order  # until it is leased
        self.box: Box | None = None
        self.ticket: Ticket | None = None
        self.group: Group | None = None  # that it was asked for with
        self.error: SandboxdError | None = None  # why it never became a lease
        self.hard_at: float | None = None
        self.life_s = lease.terms.timeout_s  # how long it was to go on when `hard_at` was set
        self.warned_of: float | None = None  # the hard end that whoever follows has heard of
        self.used_at = anyio.current_time()
        self.callers = 0  # how many wait for the answer to their request
        self.departures = 0  # how often the last of them went away
        self.told = False  # its id is known outside before it is leased
        self.announced = False  # an event has named it
        self.unwanted: EndReason | None = None  # end it as soon as it is granted
        self.unwanted_because = ""
        self.granting = anyio.CancelScope()
        self.settled = anyio.Event()
        self.recorded = anyio.Event()
        self.gone = anyio.Event()
        self.renewing = anyio.Lock()  # the guest's end and ours are moved together
        self.diary: deque[dict[str, Any]] = deque(maxlen=_DIARY_ENTRIES)
        self.execs = lease.usage.execs
        self.traffic = Traffic(lease.usage.network_in_bytes, lease.usage.network_out_bytes)
        self.way_out: WayOut | None = None
        self.proxy_port: int | None = None  # inside
        self.forward_headers: dict[int, Headers] = {}  # secret; they live here alone
        self.rewiring = anyio.Lock()  # the guest's listeners and the way out change together
        self.trace = spans.parent()  # as part of which it was asked for
        self._calls = 0
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Tenancy {self.lease.id} {self.lease.state} calls={self._calls}>"

    @property
    def guest(self) -> Guest:
        """The line into its box; only while it is leased."""
        assert self.box is not None and self.box.guest is not None
        return self.box.guest

    async def end_with(self, scope: anyio.CancelScope) -> None:
        """Cancel the scope once the end of this lease is in the store."""
        await self.recorded.wait()
        scope.cancel()

    @property
    def known(self) -> bool:
        """Whether anybody may have heard of it: a request that is refused at once is no lease."""
        return self.announced or self.told or self.lease.leased_at is not None

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight."""
        return self._calls > 0

    @property
    def idle_at(self) -> float | None:
        """When the idle clock runs out (monotonic); None while it stands still."""
        terms = self.lease.terms
        if terms.idle_timeout_s == 0 or self.in_use or self.lease.phase is Phase.GRADING:
            return None
        return self.used_at + terms.idle_timeout_s

    @property
    def warn_at(self) -> float | None:
        """When to warn of the hard end (monotonic); None once that is done, or without one."""
        if self.hard_at is None or self.hard_at == self.warned_of:
            return None
        return self.hard_at - min(_WARN_S, self.life_s / 10)

    @property
    def being_made(self) -> bool:
        """Whether a box is in the making that this queued lease will get."""
        if self.ticket is None:
            return False
        making = self.pool.stock.count(BoxState.MAKING)
        return self.ticket.making is not None or self.pool.position(self.ticket) < making

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call in flight: use, for the idle clock, until it is over."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.used_at = anyio.current_time()

    def touch(self, at: float) -> None:
        """It was used then (monotonic)."""
        self.used_at = at

    def change(self, **fields: Any) -> Lease:
        """Replace the record. Raises ValueError for a state that the table does not allow."""
        state: LeaseState = fields.get("state", self.lease.state)
        if state is not self.lease.state and state not in NEXT_STATES[self.lease.state]:
            raise ValueError(f"lease {self.lease.id} cannot go from {self.lease.state} to {state}")
        self.lease = replace(self.lease, **fields)
        return self.lease

    def shown(self) -> Lease:
        """The record as a reader should see it now, with the idle clock and time counted up."""
        lease = self.lease
        if lease.state is LeaseState.QUEUED and self.being_made:
            return replace(lease, state=LeaseState.MAKING)
        if lease.state is LeaseState.LEASED and not self.settled.is_set():
            # Not on disk yet, so nobody may hear of it: a crash would take it back.
            return replace(lease, state=LeaseState.MAKING, leased_at=None, expires_at=None)
        if lease.state is not LeaseState.LEASED:
            return lease
        now = self._clock.now()
        idle_at = self.idle_at
        left = None if idle_at is None else now + idle_at - anyio.current_time()
        usage = self.used(leased_s=now - (lease.leased_at or now))
        return replace(lease, idle_expires_at=left, usage=usage)

    def used(self, *, leased_s: float) -> Usage:
        """What it has used, as counted here."""
        return replace(
            self.lease.usage,
            execs=self.execs,
            leased_s=max(0.0, leased_s),
            network_in_bytes=self.traffic.in_bytes,
            network_out_bytes=self.traffic.out_bytes,
        )

    def close_way_out(self) -> None:
        """Nothing goes out of it any more."""
        if self.way_out is not None:
            self.way_out.close()
        self.way_out, self.forward_headers = None, {}

    def rest(self) -> None:
        """Let go of what only a live lease needs: it stays in the book for an hour."""
        self.order = self.ticket = self.box = None
        self.lease = replace(self.lease, terms=replace(self.lease.terms, env={}))

    def note(self, event: str, **facts: Any) -> None:
        """Add a line to the lease's diary, which `GET …/logs` shows."""
        self.diary.append({"at": self._clock.now(), "event": event, **facts})

    def tell(self, events: Events, type_: EventType, **facts: Any) -> None:
        """Have those who follow hear of it. facts: small, and no secret of a caller's."""
        self.announced = True
        terms = self.lease.terms
        events.tell(
            type_,
            owner=self.lease.owner,
            run_id=terms.run_id,
            sandbox_id=self.lease.id,
            template=terms.template,
            group_id=terms.group_id,
            rollout_id=terms.rollout_id,
            **facts,
        )

    def over_error(self) -> SandboxdError:
        """What a call on this lease is answered once it is over."""
        end = self.lease.end
        assert end is not None
        lost = {EndReason.DIED, EndReason.OOM, EndReason.DISK, EndReason.EVICTED}
        lost |= {EndReason.NODE_LOST, EndReason.SHUTDOWN}
        code = ErrorCode.SANDBOX_LOST if end.reason in lost else ErrorCode.LEASE_ENDED
        return SandboxdError(
            code,
            f"the lease ended: {end.reason}" + (f" ({end.detail})" if end.detail else ""),
            fault=end.fault,
            mask=end.mask,
            sandbox_id=self.lease.id,
            details={
                "end": {
                    "reason": end.reason,
                    "code": end.code,
                    "fault": end.fault,
                    "mask": end.mask,
                    "detail": end.detail,
                    "at": end.at,
                }
            },
        )
