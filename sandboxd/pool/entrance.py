"""Who may take a place in a pool's queue, and what those hear who may not. Synchronous."""

from __future__ import annotations

from sandboxd.errors import SandboxdError
from sandboxd.pool.admission import Queue
from sandboxd.pool.demand import Demand
from sandboxd.pool.experience import Experience, Health
from sandboxd.wire.codes import ErrorCode


class Entrance:
    """One pool's. most: boxes that the whole installation may have."""

    def __init__(
        self, queue: Queue, demand: Demand, experience: Experience, *, pool: str, most: int
    ) -> None:
        self._queue = queue
        self._demand = demand
        self._experience = experience
        self._pool = pool
        self._most = most

    def check(self, fingerprint: str, *, count: int = 1) -> None:
        """Whether so many may wait for boxes of that fingerprint.

        Raises `capacity` when the queue is full, and why the last make failed while none can
        succeed.
        """
        if fingerprint == self._demand.fingerprint and not self._may_try():
            raise self._experience.refusal()
        if not self._queue.has_room(count):
            waiting = len(self._queue)
            wait_s = self._experience.expected_wait_s(waiting, self._demand.settings)
            raise SandboxdError(
                ErrorCode.CAPACITY,
                f"pool {self._pool!r}: {waiting} wait, and its queue holds {self._queue.most}: "
                f"there is no place for {count} more",
                retry_after_s=max(1.0, wait_s),
                details={"position": waiting, "expected_wait_s": wait_s},
            )

    def check_size(self, count: int) -> None:
        """Raises `bad_request` for more boxes together than there can ever be."""
        most = min(self._demand.settings.max, self._most)
        if count > most:
            raise SandboxdError(
                ErrorCode.BAD_REQUEST,
                f"count: pool {self._pool!r} may have {most} sandboxes in all",
                details={"field": "count", "max": most},
            )

    def _may_try(self) -> bool:
        """While the circuit is open, one after its pause: whose make is the try."""
        if self._experience.health is not Health.OPEN:
            return True
        may_begin = self._experience.may_begin(making=self._demand.coming)
        return may_begin == 1 and not self._demand.own_tickets()


def shrunk(pool: str, most: int) -> SandboxdError:
    """What a group hears whose pool was made too small for it while it waited."""
    return SandboxdError(
        ErrorCode.CAPACITY,
        f"pool {pool!r} was made smaller meanwhile: it may have {most} sandboxes in all",
        retry_after_s=30.0,
        details={"max": most},
    )
