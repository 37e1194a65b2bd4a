"""Finds boxes of ours that no book knows, and has them removed: what a make left that succeeded
after it was given up, or what a killed daemon began.
"""

from __future__ import annotations

import anyio
import structlog
from anyio.abc import TaskStatus

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.house import House
from sandboxd.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 60.0
_LIST_S = 30.0


class Sweeper:
    """Looks once a minute, and when asked."""

    def __init__(
        self, *, backend: Backend, house: House, disposer: Disposer, metrics: Metrics
    ) -> None:
        self._backend = backend
        self._house = house
        self._disposer = disposer
        self._metrics = metrics

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sweep until cancelled. A backend that does not answer is asked again later."""
        task_status.started()
        while True:
            await anyio.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep()
            except (SandboxdError, TimeoutError) as error:
                log.warning("sweep.failed", error=str(error) or "timed out")

    async def sweep(self, *, dry_run: bool = False) -> list[str]:
        """Begin to remove every orphan; returns their ids. Raises what listing raises."""
        # A box is in a book before it is made and until it is gone. One that goes while the backend
        # lists is known before, one that is made meanwhile is known after: no grace is needed.
        known = self._known()
        with anyio.fail_after(_LIST_S):
            owned = await self._backend.list_owned()
        known |= self._known()
        orphans = [box for box in owned if box.box_id not in known]
        for box in orphans:
            if not dry_run:
                log.warning("sweep.found", box_id=box.box_id)
                self._metrics.leaks_swept.inc()
                self._disposer.dispose(box.box_id, box.ref)
        return [box.box_id for box in orphans]

    def _known(self) -> set[str]:
        stock = {box.box_id for pool in self._house.pools.values() for box in pool.stock}
        return stock | self._disposer.box_ids
