"""The front desk: grants, renews and ends leases.

Decisions are synchronous changes of the book; what follows from them (claims, store writes,
disposals) runs in tasks that `run` owns. A lease is in the store before its caller hears of it, and
a box that was ever offered to a lease never goes back to stock.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.backends.protocol import Backend, Death
from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.leases.book import Book
from sandboxd.leases.store import LeaseStore
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.box import BoxState
from sandboxd.model.claim import Claim
from sandboxd.model.ids import new_id
from sandboxd.model.lease import End, Lease, LeaseState, Phase
from sandboxd.pool.admission import Ticket
from sandboxd.pool.stock import Box
from sandboxd.pool.warm_pool import House
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode, Verdict

log = structlog.get_logger(__name__)

GUEST_GRACE_S = 10.0  # the guest's own end comes so much after ours, which can say why
_CLAIM_S = 10.0
_READ_S = 2.0
_KEPT_PLACE_S = 60.0  # of a caller who went away but gave an idempotency key
_VERDICT_S = 3.0  # how long a broken line may wait for news of the box's death


class Alarm:
    """When the reaper means to wake, and a way to wake it earlier."""

    def __init__(self) -> None:
        self.due = math.inf
        self.early = anyio.Event()

    def by(self, at: float) -> None:
        """Have it wake by that time (monotonic)."""
        if at < self.due:
            self.early.set()


class Desk:
    """See the module. `book` is for reading; only the desk, reaper and adoption write it."""

    def __init__(
        self,
        *,
        backend: Backend,
        store: LeaseStore,
        house: House,
        clock: Clock,
        metrics: Metrics,
        limits_on_commands: Mapping[str, int],
    ) -> None:
        self.book = Book()
        self.closing = False
        self._backend = backend
        self._store = store
        self._house = house
        self._clock = clock
        self._metrics = metrics
        self._limits_on_commands = limits_on_commands
        self._tasks: TaskGroup | None = None
        self.alarm = Alarm()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the desk's tasks and follow deaths, until cancelled."""
        async with anyio.create_task_group() as self._tasks, self._backend.watch() as deaths:
            task_status.started()
            async for death in deaths:
                self.died(death)

    # Granting.

    async def lease(self, order: LeaseOrder, *, owner: str) -> tuple[Lease, bool]:
        """Grant a lease, waiting for a box if `order.wait`; says also whether it is a new one.

        Raises `capacity` (not served in time, or the queue is full), `shutting_down`, `conflict`,
        and whatever making a box raises. Cancelled: the place is lost, or kept a minute for the
        idempotency key; what was granted to nobody is released.
        """
        tenancy = self.book.same(order, owner=owner)
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
        return tenancy.shown(), True

    def _open(self, order: LeaseOrder, *, owner: str) -> Tenancy:
        pool = self._house.pools[order.terms.template]
        lease = Lease(
            id=new_id("sbx"),
            owner=owner,
            terms=order.terms,
            state=LeaseState.QUEUED,
            created_at=self._clock.now(),
            backend=self._backend.name,
        )
        tenancy = Tenancy(lease, pool=pool, clock=self._clock, order=order)
        self.book.enter(tenancy)
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
        assert self._tasks is not None
        self._tasks.start_soon(self._serve, tenancy, order, name=f"serve-{tenancy.lease.id}")

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
        if order is None or not order.wait or self._tasks is None:
            return
        if order.terms.idempotency_key is None:
            tenancy.abandoned = True
            tenancy.granting.cancel()
        else:
            self._tasks.start_soon(self._keep_place, tenancy, name=f"place-{tenancy.lease.id}")

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
            with anyio.fail_after(_CLAIM_S):
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
        now = self._clock.now()
        lease = tenancy.change(
            state=LeaseState.LEASED,
            box=box.ref,
            warm=warm,
            leased_at=now,
            lease_wait_s=now - tenancy.lease.created_at,
            expires_at=now + order.terms.timeout_s,
        )
        tenancy.box, tenancy.order = box, None
        self.book.bind(tenancy)
        try:
            await self._store.put(lease)
        except SandboxdError as error:
            tenancy.error = error
            if order.wait:
                self.book.strike(tenancy)  # so that it may be asked for again under the same key
            self.end(tenancy, EndReason.MAKE_FAILED, detail=str(error))
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
        self._metrics.leases_granted.labels(pool).inc()
        self._metrics.lease_wait.observe(lease.lease_wait_s or 0.0)
        tenancy.note(
            "leased", box_id=tenancy.lease.box and tenancy.lease.box.box_id, warm=lease.warm
        )
        log.info("lease.granted", sandbox_id=lease.id, pool=pool, warm=lease.warm)
        tenancy.settled.set()
        self.alarm.by(min(tenancy.hard_at, tenancy.idle_at or tenancy.hard_at))
        if tenancy.abandoned:
            self.end(tenancy, EndReason.RELEASED, detail="the caller had gone")

    def _refuse(self, tenancy: Tenancy, error: SandboxdError) -> None:
        """The request gets an error. One that was waited for leaves no trace, so that it may be
        sent again; one that was answered with an id shows its end under that id.
        """
        tenancy.error = error
        if tenancy.lease.over:
            return
        order = tenancy.order
        if order is None or order.wait:
            self.book.strike(tenancy)
        verdict = Verdict(error.code, error.fault, error.mask)
        end = self._end_record(EndReason.MAKE_FAILED, verdict, error.detail)
        tenancy.change(state=LeaseState.ENDED, end=end)
        tenancy.recorded.set()
        tenancy.gone.set()
        tenancy.settled.set()
        self._count_end(tenancy)

    # Using.

    def find(self, lease_id: str, *, owner: str | None) -> Tenancy:
        """Raises `not_found`. Owner None sees every lease."""
        return self.book.find(lease_id, owner=owner)

    @contextmanager
    def using(self, lease_id: str, *, owner: str | None) -> Iterator[Tenancy]:
        """A leased sandbox for the length of one call, which counts as use.

        Raises `not_found`; `conflict` while it is not leased yet; `lease_ended` or `sandbox_lost`
        once it is over.
        """
        tenancy = self.look_at(lease_id, owner=owner)
        with tenancy.call():
            yield tenancy

    def look_at(self, lease_id: str, *, owner: str | None) -> Tenancy:
        """A leased sandbox for a call that is no use. Raises as `using` does."""
        tenancy = self.find(lease_id, owner=owner)
        check_leased(tenancy)
        return tenancy

    @asynccontextmanager
    async def guest_of(self, tenancy: Tenancy) -> AsyncIterator[Guest]:
        """The guest, with a broken line turned into the truth about the sandbox.

        Raises what `explain` raises.
        """
        try:
            yield tenancy.guest
        except GuestLost as lost:
            await self.explain(tenancy, lost)
        except SandboxdError as error:
            error.sandbox_id = error.sandbox_id or tenancy.lease.id
            if error.code is ErrorCode.SANDBOX_LOST:
                await self.explain(tenancy, GuestLost(error.detail, sent=False))
            raise

    async def explain(self, tenancy: Tenancy, lost: GuestLost) -> None:
        """Always raises: `lease_ended` or `sandbox_lost` with the lease's end where it is over, else
        GuestLost again: the sandbox lives, only the line broke.
        """
        with anyio.CancelScope(shield=True), anyio.move_on_after(_VERDICT_S):
            while not tenancy.lease.over:
                assert tenancy.lease.box is not None
                death = await self._backend.look(tenancy.lease.box)
                if death is None:
                    break
                self.died(death)
        if tenancy.lease.over:
            raise tenancy.over_error() from lost
        raise lost

    # Changing.

    async def renew(self, lease_id: str, *, timeout_s: float | None, owner: str | None) -> Lease:
        """Move the hard end to `timeout_s` from now; None and -1 stand for the most allowed.

        The guest and the store know before this returns. Raises `bad_request` over the maximum.
        """
        with self.using(lease_id, owner=owner) as tenancy:
            terms = tenancy.lease.terms
            if timeout_s is None or timeout_s == -1:
                timeout_s = terms.max_timeout_s
            if timeout_s > terms.max_timeout_s:
                raise SandboxdError(
                    ErrorCode.BAD_REQUEST,
                    f"timeout_s {timeout_s:g} is over max_timeout_s {terms.max_timeout_s:g}",
                    details={"field": "timeout_s", "max_timeout_s": terms.max_timeout_s},
                )
            before = tenancy.used_at
            async with self.guest_of(tenancy) as guest:
                grading_s = terms.grading_s if tenancy.lease.phase is Phase.ROLLOUT else 0
                with anyio.fail_after(_CLAIM_S):
                    await guest.renew(life_s=timeout_s + grading_s + GUEST_GRACE_S)
            check_leased(tenancy)
            tenancy.hard_at = anyio.current_time() + timeout_s
            self.alarm.by(tenancy.hard_at)
            await self._store.put(tenancy.change(expires_at=self._clock.now() + timeout_s))
        tenancy.used_at = before  # renewing is not use
        return tenancy.shown()

    async def begin_grading(self, tenancy: Tenancy, *, for_s: float) -> None:
        """End what runs and give the scorer its own time: phase `grading`, for `for_s` seconds."""
        now = self._clock.now()
        tenancy.hard_at = anyio.current_time() + for_s
        lease = tenancy.change(phase=Phase.GRADING, expires_at=now + for_s)
        tenancy.note("grading", for_s=for_s)
        self.alarm.by(tenancy.hard_at)
        async with self.guest_of(tenancy) as guest:
            with anyio.fail_after(_CLAIM_S):
                await guest.kill_all()
                await guest.renew(life_s=for_s + GUEST_GRACE_S)
        await self._store.put(lease)

    async def release(self, lease_id: str, *, owner: str | None, wait_s: float = 0) -> Lease:
        """End a lease. Success the first time and again; on disk before this returns.

        wait_s: how long to wait for the box to be gone as well.
        """
        tenancy = self.find(lease_id, owner=owner)
        if tenancy.lease.state is LeaseState.QUEUED:
            tenancy.abandoned = True
            tenancy.granting.cancel()
            await tenancy.settled.wait()
        self.end(tenancy, EndReason.RELEASED)
        await tenancy.recorded.wait()
        if wait_s > 0:
            with anyio.move_on_after(wait_s):
                await tenancy.gone.wait()
        return tenancy.shown()

    def died(self, death: Death) -> None:
        """A box is dead: so is its lease."""
        tenancy = self.book.of_box(death.box_id)
        if tenancy is not None and not tenancy.lease.over:
            code = END_VERDICTS[death.reason].code
            verdict = Verdict(code, death.fault, death.mask)
            self.end(tenancy, death.reason, detail=death.detail, verdict=verdict)
            tenancy.note("died", evidence=dict(death.evidence))
        for pool in self._house.pools.values():
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
        if tenancy.lease.over or self._tasks is None:
            return
        end = self._end_record(reason, verdict or END_VERDICTS[reason], detail)
        leased_s = end.at - (tenancy.lease.leased_at or end.at)
        usage = replace(tenancy.lease.usage, execs=tenancy.execs, leased_s=max(0.0, leased_s))
        tenancy.change(state=LeaseState.ENDING, end=end, usage=usage)
        tenancy.settled.set()
        tenancy.pool.held(leased_s)
        tenancy.note("ended", reason=reason, detail=detail)
        self._count_end(tenancy)
        log.info("lease.ended", sandbox_id=tenancy.lease.id, reason=reason, detail=detail)
        self._tasks.start_soon(self._finish, tenancy, name=f"finish-{tenancy.lease.id}")

    def _end_record(self, reason: EndReason, verdict: Verdict, detail: str) -> End:
        return End(
            reason=reason,
            code=verdict.code,
            fault=verdict.fault,
            mask=verdict.mask,
            detail=detail,
            at=self._clock.now(),
        )

    def _count_end(self, tenancy: Tenancy) -> None:
        end = tenancy.lease.end
        assert end is not None
        self._metrics.sandboxes_ended.labels(tenancy.lease.terms.template, end.reason).inc()
        if end.code is not None and end.fault is not None:
            self._metrics.faults.labels(end.fault, end.code).inc()

    async def _finish(self, tenancy: Tenancy) -> None:
        """After the end: last readings, the record, the box, and the record once more."""
        box, gone = tenancy.box, None
        if box is not None:
            await self._last_readings(tenancy)
            await self._record(tenancy)
            gone = tenancy.pool.give_up(box)
            if box.guest is not None:
                await box.guest.aclose()
        await self._close_out(tenancy, gone)

    def close_out(self, tenancy: Tenancy, box_gone: anyio.Event | None) -> None:
        """Finish an ending that an earlier daemon began."""
        assert self._tasks is not None
        name = f"finish-{tenancy.lease.id}"
        self._tasks.start_soon(self._close_out, tenancy, box_gone, name=name)

    async def _close_out(self, tenancy: Tenancy, box_gone: anyio.Event | None) -> None:
        if box_gone is not None:
            await box_gone.wait()
        if tenancy.lease.state is LeaseState.ENDING:
            tenancy.change(state=LeaseState.ENDED)
            await self._record(tenancy)
        tenancy.gone.set()

    async def _last_readings(self, tenancy: Tenancy) -> None:
        assert tenancy.lease.box is not None
        with anyio.move_on_after(_READ_S):
            try:
                seen = await self._backend.read(tenancy.lease.box)
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
        """Write an ending. A store that is full keeps the lease as it was: at the next start its box
        is looked for, found gone, and the lease ended again.
        """
        try:
            await self._store.put(tenancy.lease)
        except SandboxdError as error:
            log.error("store.failed", sandbox_id=tenancy.lease.id, error=str(error))
        tenancy.recorded.set()

    async def forget(self, tenancies: list[Tenancy]) -> None:
        """Drop ended leases for good."""
        for tenancy in tenancies:
            self.book.strike(tenancy)
        await self._store.forget([tenancy.lease.id for tenancy in tenancies])

    def close(self) -> None:
        """No new leases; everybody who waits is answered `shutting_down`. Leases live on."""
        self.closing = True
        for pool in self._house.pools.values():
            pool.refuse_all(shutting_down())


def check_leased(tenancy: Tenancy) -> None:
    """Raises `conflict` before a lease begins, `lease_ended` or `sandbox_lost` once it is over."""
    lease = tenancy.lease
    if lease.over:
        raise tenancy.over_error()
    if lease.state is not LeaseState.LEASED:
        raise SandboxdError(
            ErrorCode.CONFLICT,
            f"the sandbox is {lease.state}, not leased yet: wait with GET ?wait_s=",
            sandbox_id=lease.id,
        )


def shutting_down() -> SandboxdError:
    """What a caller hears who comes while the daemon goes."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; leases live on, ask again in a moment",
        retry_after_s=2.0,
    )
