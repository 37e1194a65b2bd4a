"""Finds boxes of ours that no book knows, and has them removed: what a make left that succeeded
after it was given up, or what a killed daemon began.
"""

from __future__ import annotations

import anyio
import structlog
from anyio.abc import TaskStatus

from sandboxd.backends.protocol import Backend, OwnedBox
from sandboxd.errors import SandboxdError
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.warm_pool import House
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
        with anyio.fail_after(_LIST_S):
            owned = await self._backend.list_owned()
        # A box is in its book before it is made and until it is gone, so that no grace is needed.
        orphans = [box for box in owned if self._is_orphan(box)]
        for box in orphans:
            if not dry_run:
                log.warning("sweep.found", box_id=box.box_id)
                self._metrics.leaks_swept.inc()
                self._disposer.dispose(box.box_id, box.ref)
        return [box.box_id for box in orphans]

    def _is_orphan(self, box: OwnedBox) -> bool:
        if self._disposer.knows(box.box_id):
            return False
        return all(pool.stock.get(box.box_id) is None for pool in self._house.pools.values())
