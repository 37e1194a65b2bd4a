"""A lease of several sandboxes at once: all of them or none.

The boxes are gathered first, claimed together, and written in one transaction; so neither a crash
nor a failure leaves a part of a group to anybody. None is told as leased before all are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.leases.back_office import CALL_S, BackOffice
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting.attendance import Attendance
from sandboxd.leases.granting.group import Group, Place
from sandboxd.leases.granting.handing_over import HandingOver, life_of
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
from sandboxd.model.lease import LeaseState
from sandboxd.pool.admission import Ticket
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import EndReason, ErrorCode

log = structlog.get_logger(__name__)

_FRESH_S = 1.0  # after a claim for which its guest needs no reminder of how long it lives
_WILLED = {EndReason.RELEASED, EndReason.RUN_LOST, EndReason.SHUTDOWN}  # not by a failure


class Groups:
    """Grants groups; see the module. check: whether a caller may have one such sandbox."""

    def __init__(
        self,
        office: BackOffice,
        endings: Endings,
        *,
        handing_over: HandingOver,
        attendance: Attendance,
        check: Callable[[LeaseOrder], Awaitable[None]],
    ) -> None:
        self._office = office
        self._endings = endings
        self._handing_over = handing_over
        self._attendance = attendance
        self._check = check
        self._refusals = Refusals(endings)
        self.closing = False

    async def lease(
        self, order: LeaseOrder, *, owner: str, rollout_ids: Sequence[str | None], kept: bool
    ) -> tuple[list[Tenancy], bool]:
        """Lease one sandbox for each of `rollout_ids`, waiting for them if `order.wait`; says also
        whether the group is a new one. order: its terms name the group and have its digest.

        kept: the caller named the group; then the same request finds it again, ended or not.
        Raises as for a lease, with why the group came to nothing where one of it failed, and
        `bad_request` for more sandboxes than the pool may have.
        Cancelled: nothing is left of it; with `kept` its places are kept a minute.
        """
        await self._check(order)
        known = await self._known(order, owner=owner)
        if known:
            return await self._join(known, wait=order.wait), False
        if self.closing:
            raise shutting_down()
        pool = self._office.house.pools[order.terms.template]
        pool.check_size(len(rollout_ids))
        self._office.admit(order, owner=owner, count=len(rollout_ids))
        group = self._open(order, owner=owner, rollout_ids=rollout_ids, kept=kept)
        with self._attended(group):
            try:
                self._queue_up(group, order)
            except BaseException as error:
                self._fail(group, cut_short(error))
                raise
            if order.wait:
                await self._await_all(group)
            else:
                await self._remember(group)
        return group.tenancies, True

    def find(self, group_id: str, *, owner: str | None) -> list[Tenancy]:
        """All sandboxes that name the group, in the order in which they were asked for. Raises
        `not_found` where none does. owner None finds everybody's.
        """
        found = self._office.book.select(
            owner=owner, where=lambda lease: lease.terms.group_id == group_id
        )
        if not found:
            raise SandboxdError(
                ErrorCode.NOT_FOUND,
                "there is no such group, or it is not this key's",
                details={"group_id": group_id},
            )
        return sorted(found, key=lambda t: (t.lease.terms.group_place, t.lease.created_at))

    async def _known(self, order: LeaseOrder, *, owner: str) -> list[Tenancy]:
        """The group of that id, once it is not on its way out. Raises `conflict` for one that
        another request made.
        """
        assert order.terms.group_id is not None
        while found := self._office.book.of_group(order.terms.group_id, owner=owner):
            if found[0].lease.terms.body_digest != order.terms.body_digest:
                raise SandboxdError(
                    ErrorCode.CONFLICT,
                    f"group {order.terms.group_id!r} was made by another request",
                    details={"group_id": order.terms.group_id},
                )
            group = found[0].group
            if group is None or group.unwanted is None or group.settled.is_set():
                return found
            await group.settled.wait()
        return []

    async def _join(self, known: list[Tenancy], *, wait: bool) -> list[Tenancy]:
        group = known[0].group
        if group is not None and wait:
            with self._attended(group):
                await group.settled.wait()
                if group.error is not None:
                    raise group.error
        elif group is not None:
            self._tell(group)
        return known

    def _open(
        self,
        order: LeaseOrder,
        *,
        owner: str,
        rollout_ids: Sequence[str | None],
        kept: bool,
    ) -> Group:
        terms = replace(order.terms, group_size=len(rollout_ids))
        orders = [
            replace(order, terms=replace(terms, rollout_id=rollout_id, group_place=number))
            for number, rollout_id in enumerate(rollout_ids)
        ]
        places = [Place(enter_request(each, self._office, owner=owner)) for each in orders]
        pool = self._office.house.pools[order.terms.template]
        group = Group(id=terms.group_id or "", pool=pool, places=places, kept=kept)
        for tenancy in group.tenancies:
            tenancy.group = group
        return group

    def _queue_up(self, group: Group, order: LeaseOrder) -> None:
        terms, owner = order.terms, group.tenancies[0].lease.owner
        group.unit, tickets = group.pool.queue_up_together(
            terms.spec,
            priority=terms.priority,
            flow=flow_of(terms, owner=owner),
            count=len(group.places),
        )
        for place, ticket in zip(group.places, tickets, strict=True):
            place.tenancy.ticket = ticket
            place.warm = ticket.box is not None
        self._office.start(self._serve, group, order, name=f"serve-group-{group.id}")
        if not all(place.warm for place in group.places):
            for tenancy in group.tenancies:
                tenancy.tell(self._office.events, EventType.LEASE_QUEUED)

    # Serving it: a task of its own.

    async def _serve(self, group: Group, order: LeaseOrder) -> None:
        with group.granting, anyio.move_on_after(order.wait_timeout_s):
            while not group.settled.is_set():
                await self._serve_once(group)
        if group.settled.is_set():
            return
        if group.unwanted is not None:
            self._withdraw(group, group.unwanted)
            return
        error = not_in_time(group.pool, order, position=group.position, count=len(group.places))
        self._fail(group, error)

    async def _serve_once(self, group: Group) -> None:
        """Wait for all boxes that are lacking, then claim them and write the leases down. Nothing
        is settled if some were no good.
        """
        try:
            await self._gather(group)
            with anyio.CancelScope(shield=True):
                if await self._claim_all(group):
                    await self._write_down(group)
        except SandboxdError as error:
            self._fail(group, error)

    async def _gather(self, group: Group) -> None:
        """Wait until each place has a box. Raises the first refusal."""
        tickets = [tenancy.ticket for tenancy in group.tenancies if tenancy.ticket is not None]
        waiting = [ticket for ticket in tickets if not ticket.settled.is_set()]
        if waiting:  # else it must not be cut off: there may have been no time to wait at all
            async with anyio.create_task_group() as tasks:

                async def wait(ticket: Ticket) -> None:
                    await ticket.settled.wait()
                    if ticket.error is not None:
                        tasks.cancel_scope.cancel()

                for number, ticket in enumerate(waiting):
                    tasks.start_soon(wait, ticket, name=f"gather-{group.id}-{number}")
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error

    async def _claim_all(self, group: Group) -> bool:
        """Claim the boxes that are there. False if some were no good: their places are in the
        queue again, before all others. Raises what the claims themselves cannot.
        """
        errors: list[SandboxdError] = []

        async def claim(place: Place) -> None:
            try:
                await self._claim(place)
            except SandboxdError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for place in group.places:
                tasks.start_soon(claim, place, name=f"claim-{place.tenancy.lease.id}")
        if errors:
            raise errors[0]
        for place in group.places:
            if place.box is not None and place.box.dead:  # while others were still being claimed
                group.pool.give_up(place.box)
                place.box = None
        lacking = [place for place in group.places if place.box is None]
        if lacking and self.closing:
            raise shutting_down()
        for place in lacking:
            ticket = place.tenancy.ticket
            assert ticket is not None
            place.tenancy.ticket, place.warm = group.pool.queue_again(ticket), False
        return not lacking

    async def _claim(self, place: Place) -> None:
        """Claim its box; or, where that was done before others had theirs, set the clock anew."""
        tenancy, now = place.tenancy, anyio.current_time()
        assert tenancy.ticket is not None
        if place.box is None:
            assert tenancy.ticket.box is not None
            if await self._handing_over.claim(tenancy.ticket.box, tenancy):
                place.box, place.claimed_at = tenancy.ticket.box, now
        elif not await self._refresh(place):
            tenancy.pool.give_up(place.box)
            place.box = None

    async def _refresh(self, place: Place) -> bool:
        """False for a box that is dead by now."""
        assert place.box is not None and place.box.guest is not None
        now = anyio.current_time()
        if now - place.claimed_at < _FRESH_S:
            return True
        try:
            with anyio.fail_after(CALL_S):
                await place.box.guest.renew(life_s=life_of(place.tenancy))
        except (GuestLost, SandboxdError, TimeoutError) as error:
            log.warning("claim.lost", box_id=place.box.box_id, error=str(error) or "timed out")
            return False
        place.claimed_at = now
        return True

    async def _write_down(self, group: Group) -> None:
        """All boxes are claimed: the leases are entered, written at once, and then told."""
        for place in group.places:
            assert place.box is not None
            self._handing_over.enter(
                place.tenancy, place.box, warm=place.warm, began_at=place.claimed_at
            )
        await self._office.store.put_all([tenancy.lease for tenancy in group.tenancies])
        if self._broken(group):
            return
        for tenancy in group.tenancies:
            self._handing_over.grant(tenancy)
        self._settle(group)

    def _broken(self, group: Group) -> bool:
        """Whether it is wanted no more, or one of it died before anybody heard of it; then all of
        it has been ended.
        """
        lost = group.lost
        if group.unwanted is None and lost is not None:
            assert lost.lease.end is not None
            if lost.lease.end.reason not in _WILLED:
                self._fail(group, lost.over_error())
                return True
            group.unwanted = lost.lease.end.reason
        if group.unwanted is not None:
            self._withdraw(group, group.unwanted)
        return group.unwanted is not None

    # How it ends.

    def abandon(self, group: Group, reason: EndReason, *, detail: str = NOBODY) -> None:
        """Have it end for that reason, whether it is granted yet or not. Synchronous: one that
        waits, or is being claimed right now, is settled a moment later.
        """
        for tenancy in group.tenancies:
            if tenancy.unwanted is None and not tenancy.lease.over:
                tenancy.unwanted_because = detail
        if not group.settled.is_set():
            group.unwanted = group.unwanted or reason
            group.granting.cancel()
            return
        for tenancy in group.tenancies:
            self._endings.end(tenancy, reason, detail=detail)

    def _withdraw(self, group: Group, reason: EndReason) -> None:
        """It ends by somebody's will."""
        self._leave_queue(group)
        for tenancy in group.tenancies:
            if tenancy.lease.state is LeaseState.QUEUED:
                self._refusals.withdraw(tenancy, reason)
            else:
                self._endings.end(tenancy, reason, detail=tenancy.unwanted_because)
        lost = group.lost
        self._settle(group, None if lost is None else lost.over_error())

    def _fail(self, group: Group, error: SandboxdError) -> None:
        """It ends because some of it cannot be had."""
        self._leave_queue(group)
        for tenancy in group.tenancies:
            if tenancy.lease.state is LeaseState.QUEUED:
                self._refusals.refuse(tenancy, error)
            else:
                self._handing_over.take_back(tenancy, error)
        self._settle(group, error)

    def _leave_queue(self, group: Group) -> None:
        """Its places are free, and boxes that were gathered for nothing go."""
        for tenancy in group.tenancies:
            if tenancy.lease.state is LeaseState.QUEUED and tenancy.ticket is not None:
                group.pool.leave(tenancy.ticket)

    def _settle(self, group: Group, error: SandboxdError | None = None) -> None:
        group.error = error
        group.settled.set()
        for place in group.places:
            place.box = None
        if group.unit is not None:
            group.pool.finished(group.unit)

    # Its callers.

    async def _await_all(self, group: Group) -> None:
        await group.settled.wait()
        if group.error is None and (lost := group.lost) is not None:
            self._fail(group, lost.over_error())  # before its caller heard of any
        if group.error is not None:
            raise group.error

    async def _remember(self, group: Group) -> None:
        """Before the ids of queued leases are told: a restart must be able to say what became of
        them.
        """
        try:
            if not group.settled.is_set():
                await self._office.store.put_all([t.lease for t in group.tenancies])
        except SandboxdError:
            self.abandon(group, EndReason.MAKE_FAILED)
            raise
        if group.error is not None:  # refused before it was told
            await self._office.store.forget([t.lease.id for t in group.tenancies])
            raise group.error
        self._tell(group)

    def _tell(self, group: Group) -> None:
        group.told = True
        for tenancy in group.tenancies:
            tenancy.told = True

    def _attended(self, group: Group) -> AbstractContextManager[None]:
        return self._attendance.of(
            group, kept=group.kept, name=group.id, abandon=partial(self.abandon, group)
        )
