"""A box becomes a lease's: its guest is told, then the book and the store, then the caller."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from sandboxd.egress.environment import proxy_env
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.leases.back_office import CALL_S, GUEST_GRACE_S, BackOffice
from sandboxd.leases.deeds import note_deed
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting.early import unfit_servers
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder, unfit
from sandboxd.leases.ways_out import WaysOut
from sandboxd.model.claim import Claim, command_limits
from sandboxd.model.lease import LeaseState
from sandboxd.model.mcp_server import exec_id_of
from sandboxd.pool.stock import Box
from sandboxd.telemetry import spans
from sandboxd.telemetry.events import EventType
from sandboxd.wire.codes import EndReason, ErrorCode, Verdict

log = structlog.get_logger(__name__)

_NO_GOOD = {ErrorCode.CONFLICT, ErrorCode.SANDBOX_LOST}  # such a box: another may do


class HandingOver:
    """The steps from a box to a lease; each is bounded, none is to be cancelled half-way."""

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

    async def claim(self, box: Box, tenancy: Tenancy) -> bool:
        """Tell the box's guest whose it is. False for a box that is dead or somebody else's; then,
        and when this raises, the box is given up.

        Raises what the claim itself cannot, as the caller's doing: files or a workdir that cannot
        be written, a forward's port that is taken.
        """
        order = tenancy.order
        assert order is not None
        try:
            fit = await self._claim(box, tenancy, order)
        except SandboxdError as error:
            tenancy.pool.give_up(box)
            raise unfit(error) from error
        except BaseException:
            tenancy.pool.give_up(box)
            raise
        if not fit:
            tenancy.pool.give_up(box)
        return fit

    async def _claim(self, box: Box, tenancy: Tenancy, order: LeaseOrder) -> bool:
        assert box.guest is not None
        share = order.terms.spec.resources.cpu
        tenancy.change(affinity=self._office.slots.take(tenancy.lease.id, share))
        try:
            with anyio.fail_after(CALL_S):
                tenancy.proxy_port = await self._ways_out.listen(box.guest, order.terms)
                claim = self._claim_of(tenancy, order)
                await box.guest.claim(claim)
                for server in unfit_servers(order.terms, claim):
                    await _end_command(box.guest, exec_id_of(server.name, 0))
                if order.start is not None:
                    await box.guest.run(order.start, wait=False)
        except (GuestLost, TimeoutError) as error:
            log.warning("claim.failed", box_id=box.box_id, error=str(error) or "timed out")
            return False
        except SandboxdError as error:
            if error.code not in _NO_GOOD:
                raise
            log.warning("claim.refused", box_id=box.box_id, error=str(error))
            return False
        return not box.dead  # it may have died right after

    def enter(self, tenancy: Tenancy, box: Box, *, warm: bool, began_at: float) -> None:
        """The box is this lease's, in the book, so that its death finds it. Synchronous.

        began_at: when its claim began, on the loop's clock. The guest counts from there, so ours
        may not wait for a slow store.
        """
        assert box.ref is not None
        assert tenancy.order is not None
        now, terms = self._office.clock.now(), tenancy.lease.terms
        tenancy.hard_at = began_at + terms.timeout_s
        tenancy.used_at = anyio.current_time()
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

    def take_back(self, tenancy: Tenancy, error: SandboxdError) -> None:
        """End a lease that was entered but that nobody has heard of, if it is not over already."""
        tenancy.error = error
        if not tenancy.told:  # it may be asked for again under the same key
            self._office.book.strike(tenancy)
            if tenancy.lease.over:
                self._endings.unwrite(tenancy)
        verdict = Verdict(error.code, error.fault, error.mask)
        self._endings.end(tenancy, EndReason.MAKE_FAILED, detail=error.detail, verdict=verdict)

    def grant(self, tenancy: Tenancy) -> None:
        """It is on disk: whoever waits may hear of it. Synchronous."""
        lease, hard_at = tenancy.lease, tenancy.hard_at
        assert lease.box is not None
        assert hard_at is not None
        pool = lease.terms.template
        self._office.metrics.leases_granted.labels(pool).inc()
        self._office.metrics.lease_wait.observe(lease.lease_wait_s or 0.0)
        spans.tell(
            "lease",
            began_at=lease.created_at,
            ended_at=lease.leased_at or lease.created_at,
            parent=tenancy.trace,
            sandbox_id=lease.id,
            pool=pool,
            warm=lease.warm,
            run_id=lease.terms.run_id,
            group_id=lease.terms.group_id,
        )
        self._ways_out.open(tenancy)
        tenancy.note("leased", box_id=lease.box.box_id, warm=lease.warm)
        tenancy.tell(
            self._office.events,
            EventType.LEASE_LEASED,
            warm=lease.warm,
            expires_at=lease.expires_at,
        )
        log.info("lease.granted", sandbox_id=lease.id, pool=pool, warm=lease.warm)
        tenancy.settled.set()
        note_deed(self._office.backend, lease)
        self._office.alarm.by(min(tenancy.warn_at or hard_at, tenancy.idle_at or hard_at))
        if tenancy.unwanted is not None:
            self._endings.end(tenancy, tenancy.unwanted, detail=tenancy.unwanted_because)

    def _claim_of(self, tenancy: Tenancy, order: LeaseOrder) -> Claim:
        terms = order.terms
        env = {**terms.env, **order.secrets}
        return Claim(
            lease_id=tenancy.lease.id,
            env={**proxy_env(tenancy.proxy_port, env), **env},
            workdir=terms.workdir,
            user=terms.user,
            capabilities=terms.capabilities,
            life_s=life_of(tenancy),
            files=order.files,
            affinity=tenancy.lease.affinity,
            **command_limits(self._limits_on_commands, terms.spec.resources),
        )


def life_of(tenancy: Tenancy) -> float:
    """How long a guest lets its box live from the beginning of its lease, in seconds."""
    terms = tenancy.lease.terms
    return terms.timeout_s + terms.grading_s + GUEST_GRACE_S


async def _end_command(guest: Guest, exec_id: str) -> None:
    """End one that ran before the lease; it is dead when this returns."""
    await guest.signal(exec_id, "KILL")
    await guest.look_exec(exec_id, wait_s=CALL_S, output=False)
