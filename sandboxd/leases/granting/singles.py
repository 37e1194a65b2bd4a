"""A lease of one sandbox: a warm box at once, or a place in the queue and the next that fits.

A lease is in the store before its caller hears of it, and a box that was ever offered to a lease
never goes back to stock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.leases.admissible import check_offer, check_spec, check_user
from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting.attendance import Attendance
from sandboxd.leases.granting.groups import Groups
from sandboxd.leases.granting.handing_over import HandingOver
from sandboxd.leases.granting.refusals import (
    NOBODY,
    Refusals,
    cut_short,
    not_in_time,
    shutting_down,
)
from sandboxd.leases.granting.requests import enter_request, flow_of
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.leases.ways_out import WaysOut
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.pool.stock import Box
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import EndReason


class Granting:
    """Grants leases; see the module. `groups` grants several at once."""

    def __init__(
        self,
        office: BackOffice,
        endings: Endings,
        *,
        ways_out: WaysOut,
        limits_on_commands: Mapping[str, int],
    ) -> None:
        self._office = office
        self._endings = endings
        self._ways_out = ways_out
        self._refusals = Refusals(endings)
        self._attendance = Attendance(office)
        self._handing_over = HandingOver(
            office, endings, ways_out=ways_out, limits_on_commands=limits_on_commands
        )
        self.groups = Groups(
            office,
            endings,
            handing_over=self._handing_over,
            attendance=self._attendance,
            check=self.check,
        )
        self._closing = False

    async def lease(self, order: LeaseOrder, *, owner: str) -> tuple[Lease, bool]:
        """Grant a lease, waiting for a box if `order.wait`; says also whether it is a new one.

        Raises `capacity` (not served in time, or the queue is full), `shutting_down`, `conflict`,
        `backend_unavailable`, `sandbox_lost` for a box that died while it was granted, what `check`
        and the gates raise, and whatever making a box raises.
        Cancelled: the place is lost, or kept a minute for the idempotency key; what was granted
        to nobody is released.
        """
        await self.check(order)
        tenancy = await self._known(order, owner=owner)
        if tenancy is not None:
            if order.wait:
                with self._attended(tenancy):
                    await self._await_grant(tenancy)
            else:
                tenancy.told = True
            return tenancy.shown(), False
        if self.closing:
            raise shutting_down()
        self._office.admit(order, owner=owner)
        tenancy = enter_request(order, self._office, owner=owner)
        with self._attended(tenancy):
            try:
                await self._grant_at_once(tenancy, order)
                if not tenancy.settled.is_set():
                    self._queue_up(tenancy, order)
            except BaseException as error:
                self._refusals.refuse(tenancy, cut_short(error))
                raise
            if order.wait:
                await self._await_grant(tenancy)
            else:
                await self._remember(tenancy)
        if order.wait and tenancy.lease.over:
            raise tenancy.over_error()
        return tenancy.shown(), True

    async def check(self, order: LeaseOrder) -> None:
        """Whether a caller may have this at all.

        Raises what `check_user`, `check_offer`, `WaysOut.check` and `check_spec` raise.
        """
        pools, capabilities = self._office.house.pools, self._office.backend.capabilities()
        check_user(order.terms.user, capabilities)
        check_offer(order.terms.spec, capabilities)
        template = pools[order.terms.template].template
        self._ways_out.check(order.terms, template=template)
        if order.terms.cold_because:
            await check_spec(
                order.terms.spec,
                template=pools[order.terms.template].spec,
                templates=[pool.spec for pool in pools.values() if not pool.retired],
                capabilities=capabilities,
            )

    async def _known(self, order: LeaseOrder, *, owner: str) -> Tenancy | None:
        """The lease that this key made. One that is on its way out may be about to free its key;
        that takes a moment, or as long as a claim.
        """
        while (found := self._office.book.same(order, owner=owner)) is not None:
            if found.unwanted is None or found.settled.is_set():
                return found
            await found.settled.wait()
        return None

    async def _grant_at_once(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        """The short way: a warm box is there. No task, no queue."""
        while (box := tenancy.pool.take(order.terms.spec)) is not None:
            with anyio.CancelScope(shield=True):  # bounded by the claim's and the store's deadlines
                if await self._hand_over(tenancy, box, warm=True):
                    return

    def _queue_up(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        if self.closing:
            raise shutting_down()
        terms = order.terms
        tenancy.ticket = tenancy.pool.queue_up(
            terms.spec,
            priority=terms.priority,
            flow=flow_of(terms, owner=tenancy.lease.owner),
        )
        self._office.start(self._serve, tenancy, order, name=f"serve-{tenancy.lease.id}")
        tenancy.tell(self._office.events, EventType.LEASE_QUEUED)

    async def _serve(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        """Wait for a box and hand it over; or refuse, when time is up or nobody wants it."""
        with tenancy.granting, anyio.move_on_after(order.wait_timeout_s):
            while not tenancy.settled.is_set():
                await self._serve_once(tenancy)
        if tenancy.settled.is_set():
            return
        assert tenancy.ticket is not None
        position = tenancy.pool.position(tenancy.ticket)
        tenancy.pool.leave(tenancy.ticket)
        if tenancy.unwanted is not None:
            self._refusals.withdraw(tenancy, tenancy.unwanted)
        else:
            error = not_in_time(tenancy.pool, order, position=position)
            self._refusals.refuse(tenancy, error)

    async def _serve_once(self, tenancy: Tenancy) -> None:
        """Wait for one box and try it. Nothing is settled if it was no good."""
        ticket = tenancy.ticket
        assert ticket is not None
        await ticket.settled.wait()
        if ticket.error is not None:
            self._refusals.refuse(tenancy, ticket.error)
            return
        assert ticket.box is not None
        with anyio.CancelScope(shield=True):
            served = await self._hand_over(tenancy, ticket.box, warm=False)
        if not served and self.closing:
            self._refusals.refuse(tenancy, shutting_down())
        elif not served:
            tenancy.ticket = tenancy.pool.queue_again(ticket)

    async def _hand_over(self, tenancy: Tenancy, box: Box, *, warm: bool) -> bool:
        """Make a box a lease's and write it down. False: that box was no good, try another.

        Not to be cancelled; every wait in it is bounded.
        """
        began_at = anyio.current_time()
        try:
            if not await self._handing_over.claim(box, tenancy):
                return False
        except SandboxdError as error:
            self._refusals.refuse(tenancy, error)
            return True
        self._handing_over.enter(tenancy, box, warm=warm, began_at=began_at)
        try:
            await self._office.store.put(tenancy.lease)
        except SandboxdError as error:
            self._handing_over.take_back(tenancy, error)
            return True
        if not tenancy.lease.over:  # it may have died meanwhile
            self._handing_over.grant(tenancy)
        return True

    async def _await_grant(self, tenancy: Tenancy) -> None:
        await tenancy.settled.wait()
        if tenancy.error is not None:
            raise tenancy.error

    async def _remember(self, tenancy: Tenancy) -> None:
        """Before a queued lease's id is told: a restart must be able to say what became of it."""
        try:
            if not tenancy.settled.is_set():
                await self._office.store.put(tenancy.lease)
        except SandboxdError:
            if not tenancy.lease.over:
                self.abandon(tenancy, EndReason.MAKE_FAILED)
            raise
        if tenancy.error is not None:  # refused before it was told
            await self._office.store.forget([tenancy.lease.id])
            raise tenancy.error
        tenancy.told = True

    def _attended(self, tenancy: Tenancy) -> AbstractContextManager[None]:
        return self._attendance.of(
            tenancy,
            kept=tenancy.lease.terms.idempotency_key is not None,
            name=tenancy.lease.id,
            abandon=partial(self.abandon, tenancy),
        )

    def abandon(self, tenancy: Tenancy, reason: EndReason, *, detail: str = NOBODY) -> None:
        """Have a lease end for that reason whether it is granted yet or not. Synchronous: one that
        waits, or is being claimed right now, is settled a moment later. A group that waits is one
        request, and ends as a whole.
        """
        if tenancy.lease.over:
            return
        if tenancy.group is not None and not tenancy.group.settled.is_set():
            self.groups.abandon(tenancy.group, reason, detail=detail)
        elif tenancy.lease.state is LeaseState.QUEUED:
            if tenancy.unwanted is None:
                tenancy.unwanted, tenancy.unwanted_because = reason, detail
            tenancy.granting.cancel()
        else:
            self._endings.end(tenancy, reason, detail=detail)

    @property
    def closing(self) -> bool:
        """Whether new leases are refused."""
        return self._closing

    @closing.setter
    def closing(self, closing: bool) -> None:
        self._closing = self.groups.closing = closing

    def close(self) -> None:
        """No new leases; everybody who waits is answered `shutting_down`. Leases live on."""
        self.closing = True
        for pool in self._office.house.pools.values():
            pool.refuse_all(shutting_down())
