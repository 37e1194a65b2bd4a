"""Ends leases whose time is up, warns before, loses runs that are not heard of, and forgets what
ended an hour ago.

It sleeps to the first deadline in the book, or until the desk sets an earlier one.
"""

from __future__ import annotations

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.leases.back_office import Alarm
from sandboxd.leases.desk import Desk
from sandboxd.leases.runs import Runs
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.lease import Lease, LeaseState, Phase
from sandboxd.telemetry.events import Events, EventType
from sandboxd.wire.codes import EndReason

log = structlog.get_logger(__name__)

KEPT_AFTER_END_S = 3600.0
_ASK_S = 5.0
_BOOKS_EVERY_S = 60.0


class Reaper:
    """The clocks of all leases and runs."""

    def __init__(self, desk: Desk, *, runs: Runs, events: Events, clock: Clock) -> None:
        self._desk = desk
        self._runs = runs
        self._events = events
        self._clock = clock
        self._asking: set[str] = set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reap until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_the_books, name="reaper-books")
            task_status.started()
            while True:
                alarm = self._desk.alarm = Alarm()
                alarm.due = self._look_at_all(tasks)
                with anyio.move_on_after(alarm.due - anyio.current_time()):
                    await alarm.early.wait()

    def _look_at_all(self, tasks: TaskGroup) -> float:
        """End what is due; returns when to look again."""
        now = anyio.current_time()
        next_due = min(now + KEPT_AFTER_END_S, self._runs.look(now))
        for tenancy in self._desk.book.live():
            if tenancy.lease.state is not LeaseState.LEASED or tenancy.hard_at is None:
                continue
            if now >= tenancy.hard_at:
                self._time_is_up(tenancy, tasks)
                continue
            next_due = min(next_due, self._warn(tenancy, now) or tenancy.hard_at)
            next_due = min(next_due, self._idle_due(tenancy, now, tasks))
        return next_due

    def _time_is_up(self, tenancy: Tenancy, tasks: TaskGroup) -> None:
        lease = tenancy.lease
        if lease.phase is Phase.ROLLOUT and lease.terms.grading_s > 0:
            tenancy.life_s = lease.terms.grading_s
            tenancy.hard_at = anyio.current_time() + lease.terms.grading_s
            tasks.start_soon(self._begin_grading, tenancy, name=f"grading-{lease.id}")
        else:
            self._desk.endings.end(tenancy, EndReason.EXPIRED, detail="timeout_s passed")

    def _warn(self, tenancy: Tenancy, now: float) -> float | None:
        """Warn of the hard end, once; returns when that is due, None if it is done."""
        warn_at, lease = tenancy.warn_at, tenancy.lease
        if warn_at is None or now < warn_at:
            return warn_at
        if not tenancy.settled.is_set():
            return None  # being granted still: whoever grants it sets the alarm
        tenancy.warned_of = tenancy.hard_at
        in_rollout = lease.phase is Phase.ROLLOUT
        tenancy.tell(
            self._events,
            EventType.LEASE_EXPIRING,
            reason=EndReason.EXPIRED,
            expires_at=lease.expires_at,
            phase=lease.phase,
            grading_s=lease.terms.grading_s if in_rollout else 0,
        )
        return None

    async def _begin_grading(self, tenancy: Tenancy) -> None:
        try:
            await self._desk.begin_grading(tenancy, for_s=tenancy.lease.terms.grading_s)
        except (SandboxdError, GuestLost, TimeoutError) as error:
            log.warning("grading.failed", sandbox_id=tenancy.lease.id, error=str(error))

    def _idle_due(self, tenancy: Tenancy, now: float, tasks: TaskGroup) -> float:
        """When this lease's idle clock must be looked at again. While calls are in flight nothing
        wakes us when they end, so it is looked at once more after a whole idle time.
        """
        idle_at = tenancy.idle_at
        lease = tenancy.lease
        if idle_at is None:
            idle_s = lease.terms.idle_timeout_s
            return now + idle_s if idle_s > 0 else tenancy.hard_at or now
        if now < idle_at:
            return idle_at
        if lease.id not in self._asking:
            self._asking.add(lease.id)
            tasks.start_soon(self._ask_whether_idle, tenancy, name=f"idle-{lease.id}")
        return now + _ASK_S

    async def _ask_whether_idle(self, tenancy: Tenancy) -> None:
        """Only the guest knows of commands that nobody waits for."""
        try:
            with anyio.fail_after(_ASK_S):
                async with self._desk.guest_of(tenancy) as guest:
                    hello = await guest.hello()
        except (SandboxdError, GuestLost, TimeoutError) as error:
            log.warning("idle.unknown", sandbox_id=tenancy.lease.id, error=str(error))
            tenancy.used_at = anyio.current_time()  # not known to be idle: ask again later
        else:
            busy = hello.execs_running > 0
            last_used_at = anyio.current_time() - (0.0 if busy else hello.idle_s)
            tenancy.used_at = max(tenancy.used_at, last_used_at)
            idle_at = tenancy.idle_at
            if idle_at is not None and anyio.current_time() >= idle_at:
                self._desk.endings.end(
                    tenancy, EndReason.IDLE, detail="idle_timeout_s passed unused"
                )
        finally:
            self._asking.discard(tenancy.lease.id)
            self._desk.alarm.by(anyio.current_time())

    async def _keep_the_books(self) -> None:
        """Once a minute: write what a full store refused, forget what ended an hour ago."""
        while True:
            await anyio.sleep(_BOOKS_EVERY_S)
            try:
                await self._desk.endings.write_again()
                await self._runs.write_again()
                old = [tenancy for tenancy in self._desk.book if self._is_old(tenancy.lease)]
                if old:
                    await self._desk.forget(old)
            except SandboxdError as error:
                log.error("store.failed", error=str(error))

    def _is_old(self, lease: Lease) -> bool:
        oldest = self._clock.now() - KEPT_AFTER_END_S
        return lease.state is LeaseState.ENDED and lease.end is not None and lease.end.at < oldest
