"""The front desk: finds, renews and releases leases, and says what became of a broken line.

Granting and ending are rooms of their own behind it. Decisions are synchronous changes of the
book; what follows from them runs in tasks that `run` owns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import anyio
from anyio.abc import TaskStatus

from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.leases.back_office import CALL_S, GUEST_GRACE_S, Alarm, BackOffice
from sandboxd.leases.book import Book
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting import Granting
from sandboxd.leases.slots import Slots
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import too_long
from sandboxd.leases.ways_out import WaysOut, Wiring
from sandboxd.model.lease import Lease, LeaseState, Phase
from sandboxd.wire.codes import EndReason, ErrorCode

_VERDICT_S = 3.0  # how long a broken line may wait for news of the box's death
_LOOK_AGAIN_S = 0.05


class Desk:
    """See the module."""

    def __init__(
        self, office: BackOffice, *, granting: Granting, endings: Endings, ways_out: WaysOut
    ) -> None:
        self._office = office
        self._ways_out = ways_out
        self.granting = granting
        self.endings = endings

    @property
    def book(self) -> Book:
        """Every lease; for reading."""
        return self._office.book

    @property
    def slots(self) -> Slots:
        """On which processors leases run."""
        return self._office.slots

    @property
    def alarm(self) -> Alarm:
        """The reaper's alarm."""
        return self._office.alarm

    @alarm.setter
    def alarm(self, alarm: Alarm) -> None:
        self._office.alarm = alarm

    @property
    def closing(self) -> bool:
        """Whether new leases are refused for good."""
        return self.granting.closing

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the desk's tasks and follow deaths, until cancelled."""
        office = self._office
        try:
            async with anyio.create_task_group() as office.tasks, office.backend.watch() as deaths:
                task_status.started()
                async for death in deaths:
                    self.endings.died(death)
        finally:
            office.tasks = None

    def find(self, lease_id: str, *, owner: str | None) -> Tenancy:
        """Raises `not_found`. Owner None sees every lease."""
        return self._office.book.find(lease_id, owner=owner)

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
        if tenancy.lease.over:
            raise tenancy.over_error()
        try:
            yield tenancy.guest
        except GuestLost as lost:
            await self.explain(tenancy, lost)
        except SandboxdError as error:
            error.sandbox_id = error.sandbox_id or tenancy.lease.id
            if error.code is ErrorCode.SANDBOX_LOST:
                await self.explain(tenancy, GuestLost(error.detail, sent=False))
            if error.code is ErrorCode.BACKEND_UNAVAILABLE and tenancy.lease.over:
                raise tenancy.over_error() from error  # it was being removed, or is gone
            raise

    async def explain(self, tenancy: Tenancy, lost: GuestLost) -> None:
        """Always raises: `lease_ended` or `sandbox_lost` with the lease's end where it is over,
        else GuestLost again: the sandbox lives, only the line broke.
        """
        with anyio.CancelScope(shield=True), anyio.move_on_after(_VERDICT_S):
            while not tenancy.lease.over:
                assert tenancy.lease.box is not None
                death = await self._office.backend.look(tenancy.lease.box)
                if death is not None:
                    self.endings.died(death)
                elif await _answers(tenancy):
                    break
                else:  # the line of one that is dying can break before anybody sees the death
                    await anyio.sleep(_LOOK_AGAIN_S)
        if tenancy.lease.over:
            raise tenancy.over_error() from lost
        raise lost

    # Changing.

    async def renew(self, lease_id: str, *, timeout_s: float | None, owner: str | None) -> Lease:
        """Move the hard end to `timeout_s` from now; None and -1 stand for the most allowed.

        The guest and the store know before this returns. Raises `bad_request` over the maximum.
        """
        tenancy = self.look_at(lease_id, owner=owner)  # renewing is not use
        terms = tenancy.lease.terms
        if timeout_s is None or timeout_s == -1:
            timeout_s = terms.max_timeout_s
        if timeout_s > terms.max_timeout_s:
            raise too_long(timeout_s, terms.max_timeout_s)
        async with tenancy.renewing:
            check_leased(tenancy)
            hard_at = anyio.current_time() + timeout_s
            async with self.guest_of(tenancy) as guest:
                grading_s = terms.grading_s if tenancy.lease.phase is Phase.ROLLOUT else 0
                with anyio.fail_after(CALL_S):
                    await guest.renew(life_s=timeout_s + grading_s + GUEST_GRACE_S)
            check_leased(tenancy)
            self._move_end(tenancy, hard_at, life_s=timeout_s)
            await self._office.store.put(tenancy.lease)
        return tenancy.shown()

    def _move_end(self, tenancy: Tenancy, hard_at: float, *, life_s: float) -> None:
        tenancy.hard_at, tenancy.life_s = hard_at, life_s
        left_s = hard_at - anyio.current_time()
        tenancy.change(expires_at=self._office.clock.now() + left_s)
        self._office.alarm.by(tenancy.warn_at or hard_at)

    async def begin_grading(self, tenancy: Tenancy, *, for_s: float) -> None:
        """End what runs and give the scorer its own time: phase `grading`, for `for_s` seconds.

        Raises as `using` does for a lease that is over.
        """
        check_leased(tenancy)
        tenancy.change(phase=Phase.GRADING)
        self._move_end(tenancy, anyio.current_time() + for_s, life_s=for_s)
        tenancy.note("grading", for_s=for_s)
        async with tenancy.renewing:
            async with self.guest_of(tenancy) as guest:
                with anyio.fail_after(CALL_S):
                    await guest.kill_all()
                    await guest.renew(life_s=for_s + GUEST_GRACE_S)
            # As it is by now: a write from before an end would undo it.
            await self._office.store.put(tenancy.lease)

    async def rewire(self, tenancy: Tenancy, wiring: Wiring) -> Lease:
        """Change what a leased sandbox may reach; connections that no longer fit are closed.

        The guest and the store know before this returns. Raises what `WaysOut.check` and `listen`
        raise; then nothing has changed.
        """
        check_leased(tenancy)
        async with tenancy.rewiring:
            check_leased(tenancy)
            old = tenancy.lease.terms
            new = wiring.applied_to(old)
            self._ways_out.check(new, template=tenancy.pool.template)
            headers = wiring.headers_after(tenancy.forward_headers)
            async with self.guest_of(tenancy) as guest:
                with anyio.fail_after(CALL_S):
                    port = await self._ways_out.relisten(guest, new, instead_of=old)
            check_leased(tenancy)
            tenancy.proxy_port, tenancy.forward_headers = port, headers
            tenancy.change(
                terms=replace(tenancy.lease.terms, network=new.network, forwards=new.forwards)
            )
            self._ways_out.open(tenancy)
            tenancy.note(
                "rewired", network=new.network.kind, forwards=[f.port for f in new.forwards]
            )
            await self._office.store.put(tenancy.lease)
        return tenancy.shown()

    async def lead_out_again(self, tenancy: Tenancy) -> None:
        """The way out of a lease that an earlier daemon granted; its guest listens still, and what
        came meanwhile waits there. Headers of forwards are lost. Raises as `guest_of` does.
        """
        terms = tenancy.lease.terms
        async with self.guest_of(tenancy) as guest:
            tenancy.proxy_port = await self._ways_out.listen(guest, terms, kept=True)
        if not tenancy.lease.over:
            self._ways_out.open(tenancy)

    async def release(self, lease_id: str, *, owner: str | None, wait_s: float = 0) -> Lease:
        """End a lease. Success the first time and again; on disk before this returns.

        wait_s: how long to wait for the box to be gone as well.
        """
        tenancy = self.find(lease_id, owner=owner)
        if tenancy.lease.state is LeaseState.QUEUED:
            tenancy.told = True
            self.granting.abandon(tenancy, EndReason.RELEASED)
            await tenancy.settled.wait()
        self.endings.end(tenancy, EndReason.RELEASED)
        await tenancy.recorded.wait()
        if wait_s > 0:
            with anyio.move_on_after(wait_s):
                await tenancy.gone.wait()
        return tenancy.shown()

    async def release_all(
        self, tenancies: Iterable[Tenancy], *, owner: str | None
    ) -> tuple[list[str], list[str]]:
        """End those leases that are not over, all at once. The ids of those that ended, on disk
        before this returns, and of those that could not be: no failure keeps others from ending.
        """
        released: list[str] = []
        failed: list[str] = []

        async def release(tenancy: Tenancy) -> None:
            try:
                await self.release(tenancy.lease.id, owner=owner)
                released.append(tenancy.lease.id)
            except SandboxdError:
                failed.append(tenancy.lease.id)

        async with anyio.create_task_group() as tasks:
            for tenancy in tenancies:
                if not tenancy.lease.over:
                    tasks.start_soon(release, tenancy, name=f"release-{tenancy.lease.id}")
        return released, failed

    async def forget(self, tenancies: list[Tenancy]) -> None:
        """Drop ended leases for good. Raises what the store raises; then nothing is dropped."""
        await self._office.store.forget([tenancy.lease.id for tenancy in tenancies])
        for tenancy in tenancies:
            self._office.book.strike(tenancy)


async def _answers(tenancy: Tenancy) -> bool:
    try:
        await tenancy.guest.hello()
    except (GuestLost, SandboxdError):
        return False
    return True


def check_leased(tenancy: Tenancy) -> None:
    """Raises `conflict` before a lease begins, `lease_ended` or `sandbox_lost` once it is over."""
    lease = tenancy.lease
    if lease.over:
        raise tenancy.over_error()
    if lease.state is not LeaseState.LEASED or not tenancy.settled.is_set():
        raise SandboxdError(
            ErrorCode.CONFLICT,
            f"the sandbox is {tenancy.shown().state}, not leased yet: wait with GET ?wait_s=",
            sandbox_id=lease.id,
        )
