"""How leases are granted: a warm box at once, or a place in the queue and the next that fits.

A lease is in the store before its caller hears of it, and a box that was ever offered to a lease
never goes back to stock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import anyio
import structlog

from sandboxd.egress.environment import proxy_env
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.leases.admissible import check_offer, check_spec, check_user
from sandboxd.leases.back_office import CALL_S, GUEST_GRACE_S, BackOffice
from sandboxd.leases.endings import Endings
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder, unfit
from sandboxd.leases.ways_out import WaysOut
from sandboxd.model.claim import Claim
from sandboxd.model.ids import new_id
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.pool.stock import Box
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode, Verdict

log = structlog.get_logger(__name__)

_KEPT_PLACE_S = 60.0  # of a caller who went away but gave an idempotency key


class Granting:
    """Grants leases; see the module."""

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
        self._limits_on_commands = limits_on_commands
        self.closing = False

    async def lease(self, order: LeaseOrder, *, owner: str) -> tuple[Lease, bool]:
        """Grant a lease, waiting for a box if `order.wait`; says also whether it is a new one.

        Raises `capacity` (not served in time, or the queue is full), `shutting_down`, `conflict`,
        `backend_unavailable`, `sandbox_lost` for a box that died while it was granted, what
        `check_user`, `check_offer`, `WaysOut.check` and `check_spec` raise, and whatever making a
        box raises.
        Cancelled: the place is lost, or kept a minute for the idempotency key; what was granted
        to nobody is released.
        """
        check_user(order.terms.user, self._office.backend.capabilities())
        check_offer(order.terms.spec, self._office.backend.capabilities())
        pool = self._office.house.pools[order.terms.template]
        self._ways_out.check(order.terms, template=pool.template.spec.network)
        if order.terms.cold_because:
            await self._check_spec(order)
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
        tenancy = self._open(order, owner=owner)
        with self._attended(tenancy):
            try:
                await self._grant_at_once(tenancy, order)
                if not tenancy.settled.is_set():
                    self._queue_up(tenancy, order)
            except BaseException as error:
                self._refuse(tenancy, error if isinstance(error, SandboxdError) else _gone())
                raise
            if order.wait:
                await self._await_grant(tenancy)
            else:
                await self._remember(tenancy)
        if order.wait and tenancy.lease.over:
            raise tenancy.over_error()
        return tenancy.shown(), True

    async def _check_spec(self, order: LeaseOrder) -> None:
        pools = self._office.house.pools
        await check_spec(
            order.terms.spec,
            template=pools[order.terms.template].spec,
            templates=[pool.spec for pool in pools.values() if not pool.retired],
            capabilities=self._office.backend.capabilities(),
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
        if self.closing:
            raise shutting_down()
        terms = order.terms
        tenancy.ticket = tenancy.pool.queue_up(terms.spec, priority=terms.priority)
        self._office.start(self._serve, tenancy, order, name=f"serve-{tenancy.lease.id}")

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
            self._withdraw(tenancy, tenancy.unwanted)
        else:
            self._refuse(tenancy, self._not_in_time(tenancy, position, order))

    async def _serve_once(self, tenancy: Tenancy) -> None:
        """Wait for one box and try it. Nothing is settled if it was no good."""
        ticket = tenancy.ticket
        assert ticket is not None
        await ticket.settled.wait()
        if ticket.error is not None:
            self._refuse(tenancy, ticket.error)
            return
        assert ticket.box is not None
        with anyio.CancelScope(shield=True):
            served = await self._hand_over(tenancy, ticket.box, warm=False)
        if not served and self.closing:
            self._refuse(tenancy, shutting_down())
        elif not served:
            tenancy.ticket = tenancy.pool.queue_again(ticket)

    def _not_in_time(self, tenancy: Tenancy, position: int, order: LeaseOrder) -> SandboxdError:
        wait_s = tenancy.pool.expected_wait_s(position)
        if (outage := tenancy.pool.experience.outage) is not None:
            return SandboxdError(outage.code, outage.detail, retry_after_s=outage.retry_after_s)
        pool = tenancy.pool.status()
        return SandboxdError(
            ErrorCode.CAPACITY,
            f"no sandbox of template {order.terms.template!r} came free within "
            f"{order.wait_timeout_s:g} s: {pool.leased} are leased, {pool.making} are being made, "
            f"{pool.max} may be",
            retry_after_s=max(1.0, min(wait_s, 30.0)),
            details={"position": position, "expected_wait_s": wait_s},
        )

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

    @contextmanager
    def _attended(self, tenancy: Tenancy) -> Iterator[None]:
        """While somebody waits for the answer. Left by an exception, it may be that nobody does."""
        tenancy.callers += 1
        try:
            yield
        except BaseException:
            tenancy.callers -= 1
            if tenancy.callers == 0 and not tenancy.lease.over and not tenancy.told:
                self._nobody_waits(tenancy)
            raise
        tenancy.callers -= 1

    def _nobody_waits(self, tenancy: Tenancy) -> None:
        if not self._office.open:
            return
        if tenancy.lease.terms.idempotency_key is None:
            self.abandon(tenancy, EndReason.RELEASED)
        elif not tenancy.settled.is_set():
            tenancy.departures += 1
            name = f"place-{tenancy.lease.id}"
            self._office.start(self._keep_place, tenancy, tenancy.departures, name=name)

    async def _keep_place(self, tenancy: Tenancy, departure: int) -> None:
        with anyio.move_on_after(_KEPT_PLACE_S):
            await tenancy.settled.wait()
            return
        nobody_came = tenancy.callers == 0 and tenancy.departures == departure
        if nobody_came and not tenancy.told:
            self.abandon(tenancy, EndReason.RELEASED)

    def abandon(self, tenancy: Tenancy, reason: EndReason) -> None:
        """Have a lease end for that reason whether it is granted yet or not. Synchronous: one that
        waits, or is being claimed right now, is settled a moment later.
        """
        if tenancy.lease.state is LeaseState.QUEUED:
            tenancy.unwanted = tenancy.unwanted or reason
            tenancy.granting.cancel()
        else:
            self._endings.end(tenancy, reason, detail="nobody waited for it any more")

    async def _hand_over(self, tenancy: Tenancy, box: Box, *, warm: bool) -> bool:
        """Claim a box for a lease and write it down. False: that box was no good, try another.

        Not to be cancelled; every wait in it is bounded.
        """
        order = tenancy.order
        assert order is not None
        began_at = anyio.current_time()
        try:
            fit = await self._claim_box(box, tenancy, order)
        except BaseException as error:
            tenancy.pool.give_up(box)
            if not isinstance(error, SandboxdError):
                raise
            # Files or a workdir that cannot be written, a forward's port that is taken.
            self._refuse(tenancy, unfit(error))
            return True
        if not fit:
            tenancy.pool.give_up(box)
            return False
        await self._write_down(tenancy, box, warm=warm, began_at=began_at)
        return True

    async def _claim_box(self, box: Box, tenancy: Tenancy, order: LeaseOrder) -> bool:
        """False for a box that is dead or somebody else's. Raises what the claim itself cannot."""
        assert box.guest is not None
        try:
            with anyio.fail_after(CALL_S):
                tenancy.proxy_port = await self._ways_out.listen(box.guest, order.terms)
                await box.guest.claim(self._claim(tenancy, order))
        except (GuestLost, TimeoutError) as error:
            log.warning("claim.failed", box_id=box.box_id, error=str(error) or "timed out")
            return False
        except SandboxdError as error:
            if error.code not in {ErrorCode.CONFLICT, ErrorCode.SANDBOX_LOST}:
                raise
            log.warning("claim.refused", box_id=box.box_id, error=str(error))
            return False
        return True

    async def _write_down(self, tenancy: Tenancy, box: Box, *, warm: bool, began_at: float) -> None:
        """The box is this lease's: in the book first, so that its death finds it, then on disk."""
        assert box.ref is not None
        now, terms = self._office.clock.now(), tenancy.lease.terms
        # The guest counts from its claim, so our clock may not wait for a slow store.
        tenancy.hard_at = began_at + terms.timeout_s
        tenancy.used_at = anyio.current_time()
        assert tenancy.order is not None
        tenancy.forward_headers = dict(tenancy.order.forward_headers)
        tenancy.box, tenancy.order = box, None
        tenancy.change(
            state=LeaseState.LEASED,
            box=box.ref,
            warm=warm,
            leased_at=now,
            lease_wait_s=now - tenancy.lease.created_at,
            expires_at=now + terms.timeout_s,
        )
        tenancy.diary.extend(map(dict, box.diary))
        self._office.book.bind(tenancy)
        try:
            await self._office.store.put(tenancy.lease)
        except SandboxdError as error:
            tenancy.error = error
            if not tenancy.told:  # it may be asked for again under the same key
                self._office.book.strike(tenancy)
            verdict = Verdict(error.code, error.fault, error.mask)
            self._endings.end(tenancy, EndReason.MAKE_FAILED, detail=error.detail, verdict=verdict)
            return
        if not tenancy.lease.over:  # it may have died meanwhile
            self._granted(tenancy)

    def _claim(self, tenancy: Tenancy, order: LeaseOrder) -> Claim:
        terms = order.terms
        limits = dict(self._limits_on_commands)
        if "nproc" in limits:
            limits["nproc"] = terms.spec.resources.pids
        env = {**terms.env, **order.secrets}
        return Claim(
            lease_id=tenancy.lease.id,
            env={**proxy_env(tenancy.proxy_port, env), **env},
            workdir=terms.workdir,
            user=terms.user,
            capabilities=terms.capabilities,
            life_s=terms.timeout_s + terms.grading_s + GUEST_GRACE_S,
            files=order.files,
            **limits,
        )

    def _granted(self, tenancy: Tenancy) -> None:
        lease, hard_at = tenancy.lease, tenancy.hard_at
        assert lease.box is not None
        assert hard_at is not None
        pool = lease.terms.template
        self._office.metrics.leases_granted.labels(pool).inc()
        self._office.metrics.lease_wait.observe(lease.lease_wait_s or 0.0)
        self._ways_out.open(tenancy)
        tenancy.note("leased", box_id=lease.box.box_id, warm=lease.warm)
        log.info("lease.granted", sandbox_id=lease.id, pool=pool, warm=lease.warm)
        tenancy.settled.set()
        self._office.alarm.by(min(hard_at, tenancy.idle_at or hard_at))
        if tenancy.unwanted is not None:
            self._endings.end(tenancy, tenancy.unwanted, detail="nobody waited for it any more")

    def _withdraw(self, tenancy: Tenancy, reason: EndReason) -> None:
        """The request ends without a box, by somebody's will."""
        if not tenancy.lease.over:
            detail = "nobody waited for it any more"
            self._endings.end_queued(tenancy, reason, END_VERDICTS[reason], detail)
            tenancy.error = tenancy.over_error()

    def _refuse(self, tenancy: Tenancy, error: SandboxdError) -> None:
        """The request gets an error. One that was waited for leaves no trace, so that it may be
        sent again; one that was answered with an id shows its end under that id.
        """
        if not tenancy.lease.over and tenancy.lease.state is LeaseState.QUEUED:
            tenancy.error = error
            verdict = Verdict(error.code, error.fault, error.mask)
            self._endings.end_queued(tenancy, EndReason.MAKE_FAILED, verdict, error.detail)

    def close(self) -> None:
        """No new leases; everybody who waits is answered `shutting_down`. Leases live on."""
        self.closing = True
        for pool in self._office.house.pools.values():
            pool.refuse_all(shutting_down())


def _gone() -> SandboxdError:
    return SandboxdError(ErrorCode.INTERNAL, "the request was cut short")


def shutting_down() -> SandboxdError:
    """What a caller hears who comes while the daemon goes."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; leases live on, ask again in a moment",
        retry_after_s=2.0,
    )
