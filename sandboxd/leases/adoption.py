"""At start: keep what is alive, end what is not, dispose of what nobody holds.

The store says who holds which box, labels say which boxes are ours, guests say whether a box was
ever leased and whether its set-up was finished; so does its deed, where backends keep them. No used
box can become stock again: a guest that was claimed says so.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog

from sandboxd.backends.protocol import Backend, OwnedBox
from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import Hello
from sandboxd.leases.back_office import GUEST_GRACE_S
from sandboxd.leases.deeds import note_deed
from sandboxd.leases.desk import Desk
from sandboxd.leases.store import LeaseStore
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.box import BoxRef, BoxState
from sandboxd.model.lease import Lease, LeaseState, Phase
from sandboxd.model.template import PoolSettings, Template
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.house import House
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import CODES, EndReason, ErrorCode, Verdict

log = structlog.get_logger(__name__)

_AT_ONCE = 16
_ASK_S = 5.0
_SEE_S = 30.0


class Adoption:
    """Done once, after the desk runs and before the API answers."""

    def __init__(
        self,
        *,
        desk: Desk,
        house: House,
        store: LeaseStore,
        backend: Backend,
        disposer: Disposer,
        clock: Clock,
        metrics: Metrics,
        open_pool: Callable[[Template], WarmPool],
    ) -> None:
        self._desk = desk
        self._house = house
        self._store = store
        self._backend = backend
        self._disposer = disposer
        self._clock = clock
        self._metrics = metrics
        self._open_pool = open_pool
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Raises what the store and the backend raise, and `backend_unavailable` where they say
        nothing: a daemon that cannot see must not start.
        """
        try:
            with anyio.fail_after(_SEE_S):
                leases = await self._store.load()
                owned = {box.box_id: box for box in await self._backend.list_owned()}
        except TimeoutError as error:
            detail = f"the boxes of the last daemon could not be listed within {_SEE_S:g} s"
            raise SandboxdError(ErrorCode.BACKEND_UNAVAILABLE, detail) from error
        async with anyio.create_task_group() as tasks:
            for lease in leases:
                box_id = lease.box.box_id if lease.box is not None else ""
                box = owned.pop(box_id, None)
                if lease.over:
                    self._after_the_end(lease, box)
                else:
                    tasks.start_soon(self._take_back, lease, box, name=f"adopt-{lease.id}")
            for box in owned.values():
                tasks.start_soon(self._take_in, box, name=f"adopt-{box.box_id}")
        log.info("adopted", leases=len(leases), other_boxes=len(owned))

    async def _take_back(self, lease: Lease, box: OwnedBox | None) -> None:
        """One lease of the store that was not over."""
        async with self._limiter:
            pool = self._pool_of(lease)
            tenancy = Tenancy(lease, pool=pool, clock=self._clock)
            tenancy.settled.set()
            if lease.state is LeaseState.QUEUED or lease.box is None:
                await self._was_queued(tenancy)
                return
            if box is None or box.ref is None:
                tenancy.box = None
                self._desk.book.enter(tenancy)
                self._box_is_gone(tenancy)
                self._remove(box)
                return
            tenancy.box = pool.adopt(
                lease.box, fingerprint=lease.terms.spec.fingerprint(), state=BoxState.LEASED
            )
            self._desk.book.enter(tenancy)
            self._desk.slots.note(lease.id, lease.affinity)
            if box.lease_id not in {"", lease.id}:
                detail = f"its box is noted as that of another lease, {box.lease_id}"
                self._desk.endings.end(tenancy, EndReason.DIED, detail=detail)
                return
            hello = await self._ask(tenancy)
            if not tenancy.lease.over:
                self._set_clocks(tenancy, hello)
            if hello is not None and not tenancy.lease.over:
                await self._lead_out(tenancy)
            if not box.lease_id and not tenancy.lease.over:  # the last daemon had not come to it
                note_deed(self._backend, tenancy.lease)

    async def _was_queued(self, tenancy: Tenancy) -> None:
        """Its id was told, but its secrets and files were in memory alone: it cannot be served. The
        code is one that passes, so that a client asks again by itself.
        """
        self._desk.book.enter(tenancy)
        tenancy.told = True
        facts = CODES[ErrorCode.SHUTTING_DOWN]
        verdict = Verdict(ErrorCode.SHUTTING_DOWN, facts.fault, facts.mask)
        detail = "the daemon was started again while this request was queued: ask once more"
        self._desk.endings.end_queued(tenancy, EndReason.MAKE_FAILED, verdict, detail)
        await tenancy.recorded.wait()

    def _box_is_gone(self, tenancy: Tenancy) -> None:
        """Nothing of it tells any more how it ended; but by its hard end it was to be gone."""
        over_at = (tenancy.lease.expires_at or 0.0) + tenancy.lease.terms.grading_s
        reason = EndReason.EXPIRED if self._clock.now() >= over_at else EndReason.DIED
        detail = "its box was gone when the daemon came back"
        if reason is EndReason.EXPIRED:
            detail += ", after its hard end"
        self._desk.endings.end(tenancy, reason, detail=detail)

    def _set_clocks(self, tenancy: Tenancy, hello: Hello | None) -> None:
        """How long it has left, by the guest's clock, which nobody sets; the time of day, which may
        have been set back or forth meanwhile, stands in for a guest that says nothing.

        Its idle clock starts anew: while no daemon was there its holder could not use it.
        """
        lease = tenancy.lease
        left_s = (lease.expires_at or 0.0) - self._clock.now()
        if hello is not None and hello.life_left_s is not None:
            grading_s = lease.terms.grading_s if lease.phase is Phase.ROLLOUT else 0.0
            left_s = hello.life_left_s - GUEST_GRACE_S - grading_s
        left_s = min(left_s, lease.terms.max_timeout_s)
        tenancy.hard_at = anyio.current_time() + left_s
        tenancy.change(expires_at=self._clock.now() + left_s)

    async def _ask(self, tenancy: Tenancy) -> Hello | None:
        """Is it alive, is it still this lease's, how long does its guest give it? None, and over,
        for one that is not; None for one that says nothing.
        """
        try:
            with anyio.fail_after(_ASK_S):
                async with self._desk.guest_of(tenancy) as guest:
                    hello = await guest.hello()
        except (GuestLost, TimeoutError) as error:
            # It lives as far as the backend can see: keep it, and let its calls tell.
            log.warning("adopt.silent", sandbox_id=tenancy.lease.id, error=str(error))
            return None
        except SandboxdError:
            return None  # dead: `guest_of` has ended the lease
        if hello.lease_id != tenancy.lease.id:
            detail = "its box says that it belongs to another lease"
            self._desk.endings.end(tenancy, EndReason.DIED, detail=detail)
            return None
        return hello

    async def _lead_out(self, tenancy: Tenancy) -> None:
        try:
            with anyio.fail_after(_ASK_S):
                await self._desk.lead_out_again(tenancy)
        except (GuestLost, TimeoutError, SandboxdError) as error:
            log.warning("adopt.no_way_out", sandbox_id=tenancy.lease.id, error=str(error))
        tenancy.note("adopted")

    def _after_the_end(self, lease: Lease, box: OwnedBox | None) -> None:
        """A lease that was over: finish what the last daemon had begun."""
        tenancy = Tenancy(lease, pool=self._pool_of(lease), clock=self._clock)
        tenancy.settled.set()
        tenancy.told = True
        tenancy.recorded.set()
        self._desk.book.enter(tenancy)
        gone = None if box is None else self._disposer.dispose(box.box_id, box.ref)
        self._desk.endings.close_out(tenancy, gone)

    async def _take_in(self, box: OwnedBox) -> None:
        """A box that no lease holds: stock if it was never leased, its set-up was finished and it
        still fits; else removed.
        """
        async with self._limiter:
            if box.lease_id:
                log.warning("adopt.no_such_lease", box_id=box.box_id, sandbox_id=box.lease_id)
                self._remove(box)
                return
            pool = self._house.pools.get(box.labels.get("pool", ""))
            fingerprint = box.labels.get("fingerprint", "")
            fits = pool is not None and fingerprint == pool.spec.fingerprint()
            if not (box.alive and box.ref is not None and fits and pool is not None):
                self._remove(box)
                return
            if not await self._lives(box.ref):
                self._remove(box)
                return
            taken = pool.adopt(box.ref, fingerprint=fingerprint, state=BoxState.WARM)
            assert taken.guest is not None
            try:
                with anyio.fail_after(_ASK_S):
                    hello = await taken.guest.hello()
                fresh = hello.lease_id == "" and (hello.ready or not pool.spec.prepared)
            except (GuestLost, SandboxdError, TimeoutError):
                fresh = False
            if not fresh and taken.state is BoxState.WARM:
                self._metrics.leaks_swept.inc()
                pool.give_up(taken)

    async def _lives(self, ref: BoxRef) -> bool:
        """Looking also has the backend watch it from now on. Silence is no sign of life, and nobody
        holds this box: it is no loss.
        """
        try:
            with anyio.fail_after(_ASK_S):
                return await self._backend.look(ref) is None
        except (SandboxdError, TimeoutError) as error:
            log.warning("adopt.blind", box_id=ref.box_id, error=str(error) or "timed out")
            return False

    def _remove(self, box: OwnedBox | None) -> None:
        if box is not None:
            self._metrics.leaks_swept.inc()
            self._disposer.dispose(box.box_id, box.ref)

    def _pool_of(self, lease: Lease) -> WarmPool:
        """The lease's pool, or a retired one where the template left the configuration."""
        name = lease.terms.template
        if name not in self._house.pools:
            settings = PoolSettings(ready=0, max=0, starting=1, queue=0)
            template = Template(name=name, spec=lease.terms.spec, pool=settings)
            self._open_pool(template)
        return self._house.pools[name]
