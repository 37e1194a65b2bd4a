"""How leases are granted: a warm box at once, or a place in the queue and the next that fits.

A lease is in the store before its caller hears of it, and a box that was ever offered to a lease
never goes back to stock.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.leases.back_office import CALL_S, GUEST_GRACE_S, BackOffice
from sandboxd.leases.endings import Endings
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.box import BoxState
from sandboxd.model.claim import Claim
from sandboxd.model.ids import new_id
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.pool.admission import Ticket
from sandboxd.pool.stock import Box
from sandboxd.wire.codes import EndReason, ErrorCode, Verdict

log = structlog.get_logger(__name__)

_KEPT_PLACE_S = 60.0  # of a caller who went away but gave an idempotency key


class Granting:
    """Grants leases; see the module."""

    def __init__(
        self, office: BackOffice, endings: Endings, *, limits_on_commands: Mapping[str, int]
    ) -> None:
        self._office = office
        self._endings = endings
        self._limits_on_commands = limits_on_commands
        self.closing = False

    async def lease(self, order: LeaseOrder, *, owner: str) -> tuple[Lease, bool]:
        """Grant a lease, waiting for a box if `order.wait`; says also whether it is a new one.

        Raises `capacity` (not served in time, or the queue is full), `shutting_down`, `conflict`,
        and whatever making a box raises. Cancelled: the place is lost, or kept a minute for the
        idempotency key; what was granted to nobody is released.
        """
        tenancy = self._office.book.same(order, owner=owner)
        if tenancy is not None:
            if order.wait:
                await self._await_grant(tenancy)
            return tenancy.shown(), False
        if self.closing:
            raise shutting_down()
        tenancy = self._open(order, owner=owner)
        await self._grant_at_once(tenancy, order)
        if not tenancy.settled.is_set():
            self._queue_up(tenancy, order)
        if order.wait:
            await self._await_grant(tenancy)
        elif not tenancy.settled.is_set():
            # its id is about to be told: a restart must be able to say what became of it
            await self._office.store.put(tenancy.lease)
        return tenancy.shown(), True

    def _open(self, order: LeaseOrder, *, owner: str) -> Tenancy:
        pool = self._office.house.pools[order.terms.template]
        lease = Lease(
            id=new_id("sbx"),
            owner=owner,
            terms=order.terms,
            state=LeaseState.QUEUED,
            created_at=self._office.clock.now(),
            backend=self._office.backend.name,
        )
        tenancy = Tenancy(lease, pool=pool, clock=self._office.clock, order=order)
        self._office.book.enter(tenancy)
        return tenancy

    async def _grant_at_once(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        """The short way: a warm box is there. No task, no queue."""
        while (box := tenancy.pool.take(order.terms.spec)) is not None:
            with anyio.CancelScope(shield=True):  # bounded by the claim's and the store's deadlines
                if await self._hand_over(tenancy, box, warm=True):
                    return

    def _queue_up(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        try:
            self._take_place(tenancy, order)
        except SandboxdError as error:
            self._refuse(tenancy, error)
            return
        self._office.start(self._serve, tenancy, order, name=f"serve-{tenancy.lease.id}")

    def _take_place(self, tenancy: Tenancy, order: LeaseOrder) -> Ticket:
        terms = order.terms
        tenancy.ticket = tenancy.pool.queue_up(terms.spec, priority=terms.priority)
        return tenancy.ticket

    async def _serve(self, tenancy: Tenancy, order: LeaseOrder) -> None:
        """Wait for a box and hand it over; or refuse, when time is up or the caller is gone."""
        ticket = tenancy.ticket
        assert ticket is not None
        with tenancy.granting, anyio.move_on_after(order.wait_timeout_s) as patience:
            while not tenancy.settled.is_set():
                await ticket.settled.wait()
                if ticket.error is not None:
                    self._refuse(tenancy, ticket.error)
                    return
                assert ticket.box is not None
                with anyio.CancelScope(shield=True):
                    served = await self._hand_over(tenancy, ticket.box, warm=False)
                if not served:
                    try:
                        ticket = self._take_place(tenancy, order)
                    except SandboxdError as error:
                        self._refuse(tenancy, error)
                        return
        if tenancy.settled.is_set():
            return
        position = tenancy.pool.position(ticket)
        self._leave_queue(tenancy)
        if patience.cancelled_caught:
            self._refuse(tenancy, self._not_in_time(tenancy, position, order))
        else:
            gone = "the caller went away while the request was queued"
            self._refuse(tenancy, SandboxdError(ErrorCode.CAPACITY, gone))

    def _leave_queue(self, tenancy: Tenancy) -> None:
        ticket = tenancy.ticket
        if ticket is None:
            return
        tenancy.pool.leave(ticket)
        if ticket.box is not None and ticket.box.state is BoxState.LEASED:
            tenancy.pool.give_up(ticket.box)  # given in the very moment the caller left

    def _not_in_time(self, tenancy: Tenancy, position: int, order: LeaseOrder) -> SandboxdError:
        wait_s = tenancy.pool.expected_wait_s(position)
        return SandboxdError(
            ErrorCode.CAPACITY,
            f"no sandbox of template {order.terms.template!r} came free within "
            f"{order.wait_timeout_s:g} s",
            retry_after_s=max(1.0, min(wait_s, 30.0)),
            details={"position": position, "expected_wait_s": wait_s},
        )

    async def _await_grant(self, tenancy: Tenancy) -> None:
        tenancy.waiters += 1
        try:
            await tenancy.settled.wait()
        finally:
            tenancy.waiters -= 1
            if not tenancy.settled.is_set() and tenancy.waiters == 0:
                self._nobody_waits(tenancy)
        if tenancy.error is not None:
            raise tenancy.error

    def _nobody_waits(self, tenancy: Tenancy) -> None:
        order = tenancy.order
        if order is None or not order.wait or not self._office.open:
            return
        if order.terms.idempotency_key is None:
            tenancy.abandoned = True
            tenancy.granting.cancel()
        else:
            self._office.start(self._keep_place, tenancy, name=f"place-{tenancy.lease.id}")

    async def _keep_place(self, tenancy: Tenancy) -> None:
        with anyio.move_on_after(_KEPT_PLACE_S):
            await tenancy.settled.wait()
        if tenancy.waiters == 0:
            tenancy.granting.cancel()

    async def _hand_over(self, tenancy: Tenancy, box: Box, *, warm: bool) -> bool:
        """Claim a box for a lease and write it down. False: that box was no good, try another.

        Not to be cancelled; every wait in it is bounded.
        """
        order = tenancy.order
        assert order is not None and box.ref is not None and box.guest is not None
        try:
            with anyio.fail_after(CALL_S):
                await box.guest.claim(self._claim(tenancy.lease, order))
        except (GuestLost, TimeoutError) as error:
            log.warning("claim.failed", box_id=box.box_id, error=str(error) or "timed out")
            tenancy.pool.give_up(box)
            return False
        except SandboxdError as error:
            tenancy.pool.give_up(box)
            if error.code in {ErrorCode.CONFLICT, ErrorCode.SANDBOX_LOST}:
                log.warning("claim.refused", box_id=box.box_id, error=str(error))
                return False
            self._refuse(tenancy, error)  # files or a workdir that cannot be written
            return True
        now = self._office.clock.now()
        lease = tenancy.change(
            state=LeaseState.LEASED,
            box=box.ref,
            warm=warm,
            leased_at=now,
            lease_wait_s=now - tenancy.lease.created_at,
            expires_at=now + order.terms.timeout_s,
        )
        tenancy.box, tenancy.order = box, None
        self._office.book.bind(tenancy)
        try:
            await self._office.store.put(lease)
        except SandboxdError as error:
            tenancy.error = error
            if order.wait:
                self._office.book.strike(
                    tenancy
                )  # so that it may be asked for again under the same key
            self._endings.end(tenancy, EndReason.MAKE_FAILED, detail=str(error))
            return True
        self._granted(tenancy)
        return True

    def _claim(self, lease: Lease, order: LeaseOrder) -> Claim:
        terms = order.terms
        limits = dict(self._limits_on_commands)
        if "nproc" in limits:
            limits["nproc"] = terms.spec.resources.pids
        return Claim(
            lease_id=lease.id,
            env={**terms.env, **order.secrets},
            workdir=terms.workdir,
            user=terms.user,
            capabilities=terms.capabilities,
            life_s=terms.timeout_s + terms.grading_s + GUEST_GRACE_S,
            files=order.files,
            **limits,
        )

    def _granted(self, tenancy: Tenancy) -> None:
        lease = tenancy.lease
        tenancy.hard_at = anyio.current_time() + lease.terms.timeout_s
        tenancy.used_at = anyio.current_time()
        pool = lease.terms.template
        self._office.metrics.leases_granted.labels(pool).inc()
        self._office.metrics.lease_wait.observe(lease.lease_wait_s or 0.0)
        tenancy.note(
            "leased", box_id=tenancy.lease.box and tenancy.lease.box.box_id, warm=lease.warm
        )
        log.info("lease.granted", sandbox_id=lease.id, pool=pool, warm=lease.warm)
        tenancy.settled.set()
        self._office.alarm.by(min(tenancy.hard_at, tenancy.idle_at or tenancy.hard_at))
        if tenancy.abandoned:
            self._endings.end(tenancy, EndReason.RELEASED, detail="the caller had gone")

    def _refuse(self, tenancy: Tenancy, error: SandboxdError) -> None:
        """The request gets an error. One that was waited for leaves no trace, so that it may be
        sent again; one that was answered with an id shows its end under that id.
        """
        tenancy.error = error
        if tenancy.lease.over:
            return
        order = tenancy.order
        if order is None or order.wait:
            self._office.book.strike(tenancy)
        verdict = Verdict(error.code, error.fault, error.mask)
        end = self._endings.end_record(EndReason.MAKE_FAILED, verdict, error.detail)
        tenancy.change(state=LeaseState.ENDED, end=end)
        tenancy.recorded.set()
        tenancy.gone.set()
        tenancy.settled.set()
        self._endings.count(tenancy)

    def close(self) -> None:
        """No new leases; everybody who waits is answered `shutting_down`. Leases live on."""
        self.closing = True
        for pool in self._office.house.pools.values():
            pool.refuse_all(shutting_down())


def shutting_down() -> SandboxdError:
    """What a caller hears who comes while the daemon goes."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; leases live on, ask again in a moment",
        retry_after_s=2.0,
    )
