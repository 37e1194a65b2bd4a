"""What a pool has learned of its makes: how fast they are, what failed last, when to try again.

It is a circuit breaker too. After a few failures in a row of what the pool makes for everybody,
the circuit is open: nobody waits any more for a make that would fail, and one make at the end of
each pause tries whether it is mended. Synchronous; knows no stock and no queue.
"""

from __future__ import annotations

from enum import StrEnum

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.model.template import PoolSettings
from sandboxd.pool.plan import Pace, expected_wait_s
from sandboxd.telemetry.events import Events, EventType
from sandboxd.wire.codes import ErrorCode

FAILURES_TO_OPEN = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Health(StrEnum):
    """How the makes of a pool go."""

    OK = "ok"
    RESTING = "resting"  # the last one failed: refill waits a while, callers are served
    OPEN = "open"  # several failed in a row: callers are answered at once with why


class Experience:
    """One pool's.

    last_error: for people; None once a make went well. outage: while the backend answers no make.
    rests_until: when refill may go on after failures, on the loop's clock.
    """

    def __init__(self) -> None:
        self.last_error: str | None = None
        self.outage: SandboxdError | None = None
        self.rests_until = 0.0
        self._failures = 0
        self._failure: SandboxdError | None = None
        self._pace = Pace()

    @property
    def rested(self) -> bool:
        """Whether refill may go on."""
        return anyio.current_time() >= self.rests_until

    @property
    def health(self) -> Health:
        """Where the circuit stands."""
        if self._failures >= FAILURES_TO_OPEN:
            return Health.OPEN
        return Health.RESTING if self._failures else Health.OK

    def may_begin(self, *, making: int) -> int | None:
        """How many boxes for everybody may be begun; None for any number. With an open circuit it
        is one, after the pause. making: such boxes that are being made.
        """
        if self.health is not Health.OPEN:
            return None
        return max(0, 1 - making) if self.rested else 0

    def made(self, took_s: float, *, alone: bool = False) -> None:
        """A make went well. alone: it was made for one caller, who wanted something else."""
        if not alone:
            self.start_over()
            self.last_error = None
        self.outage = None
        self._pace = Pace(make_s=0.7 * self._pace.make_s + 0.3 * took_s, hold_s=self._pace.hold_s)

    def failed(self, error: SandboxdError, *, alone: bool = False) -> None:
        """A make failed: refill rests, longer with each failure more. A backend that is away is
        told with when to ask again. alone: as for `made`; says nothing of the others.
        """
        self.last_error, self.outage = str(error), None
        pause_s = min(_FIRST_PAUSE_S * 2.0**self._failures, _LONGEST_PAUSE_S)
        if not alone:
            self.rests_until = anyio.current_time() + pause_s
            self._failures += 1
            self._failure = error
        if error.code is ErrorCode.BACKEND_UNAVAILABLE:
            error.retry_after_s = error.retry_after_s or max(1.0, pause_s)
            self.outage = error

    def refusal(self) -> SandboxdError:
        """What a caller is answered while the circuit is open: why the last make failed, and when
        the next try comes. Nothing was begun for it.
        """
        error = self._failure
        assert error is not None
        return SandboxdError(
            error.code,
            f"{error.detail} ({self._failures} makes in a row have failed: ask again in a moment)",
            fault=error.fault,
            mask=error.mask,
            retry_safe=True,
            retry_after_s=max(1.0, self.rests_until - anyio.current_time()),
            details={**error.details, "circuit": Health.OPEN, "failures": self._failures},
        )

    def noticed(self, trouble: str) -> None:
        """Something went wrong with stock that was there already."""
        self.last_error = trouble

    def start_over(self) -> None:
        """What is made has changed, or is made again: no reason to rest."""
        self._failures, self.rests_until, self._failure = 0, 0.0, None

    def held(self, seconds: float) -> None:
        """A lease lasted so long: the pace of releases."""
        self._pace = Pace(make_s=self._pace.make_s, hold_s=0.8 * self._pace.hold_s + 0.2 * seconds)

    def expected_wait_s(self, position: int, settings: PoolSettings) -> float:
        """An estimate of the wait at that place of the queue; 0 is next."""
        return expected_wait_s(
            self._pace, position=position, starting=settings.starting, most=settings.max
        )


class Alerts:
    """Tells those who follow a pool when it can make no boxes, and when it can again."""

    def __init__(self, events: Events, *, pool: str) -> None:
        self._events = events
        self._pool = pool
        self._faulty = False  # as it was told last

    def look(self, experience: Experience) -> None:
        """Tell what has changed, once: `pool.fault` when the circuit opens, `pool.ready` when a
        make goes well after that.
        """
        if not self._faulty and experience.health is Health.OPEN:
            why = experience.refusal()
            self._events.tell(
                EventType.POOL_FAULT,
                template=self._pool,
                code=why.code,
                fault=why.fault,
                detail=why.detail,
                retry_after_s=why.retry_after_s,
            )
            self._faulty = True
        elif self._faulty and experience.health is Health.OK:
            self._events.tell(EventType.POOL_READY, template=self._pool)
            self._faulty = False
