"""What a pool has learned of its makes: how fast they are, what failed last, when to try again.

Synchronous; knows no stock and no queue.
"""

from __future__ import annotations

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.model.template import PoolSettings
from sandboxd.pool.plan import Pace, expected_wait_s
from sandboxd.wire.codes import ErrorCode

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


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
        self._pace = Pace()

    @property
    def rested(self) -> bool:
        """Whether refill may go on."""
        return anyio.current_time() >= self.rests_until

    def made(self, took_s: float) -> None:
        """A make went well."""
        self.start_over()
        self.last_error = self.outage = None
        self._pace = Pace(make_s=0.7 * self._pace.make_s + 0.3 * took_s, hold_s=self._pace.hold_s)

    def failed(self, error: SandboxdError) -> None:
        """A make failed: refill rests, longer with each failure more. A backend that is away is
        told with when to ask again.
        """
        pause_s = min(_FIRST_PAUSE_S * 2.0**self._failures, _LONGEST_PAUSE_S)
        self.rests_until = anyio.current_time() + pause_s
        self._failures += 1
        self.last_error, self.outage = str(error), None
        if error.code is ErrorCode.BACKEND_UNAVAILABLE:
            error.retry_after_s = error.retry_after_s or max(1.0, pause_s)
            self.outage = error

    def noticed(self, trouble: str) -> None:
        """Something went wrong with stock that was there already."""
        self.last_error = trouble

    def start_over(self) -> None:
        """What is made has changed, or is made again: no reason to rest."""
        self._failures, self.rests_until = 0, 0.0

    def held(self, seconds: float) -> None:
        """A lease lasted so long: the pace of releases."""
        self._pace = Pace(make_s=self._pace.make_s, hold_s=0.8 * self._pace.hold_s + 0.2 * seconds)

    def expected_wait_s(self, position: int, settings: PoolSettings) -> float:
        """An estimate of the wait at that place of the queue; 0 is next."""
        return expected_wait_s(
            self._pace, position=position, starting=settings.starting, most=settings.max
        )
