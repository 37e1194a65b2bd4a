"""Gets rid of boxes and stays at it: a removal that fails is tried again with back-off until the
box is gone, and until then the box counts as existing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.model.box import BoxRef

log = structlog.get_logger(__name__)

_DISPOSE_S = 60.0  # one try; what hangs longer is tried again
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0


@dataclass(slots=True, eq=False)
class _Errand:
    box_id: str
    ref: BoxRef | None  # None: the remains of a make that never finished
    guest: Guest | None  # our lines into it, closed before it goes
    gone: anyio.Event = field(default_factory=anyio.Event)


class Disposer:
    """Removes boxes, a bounded number at once."""

    def __init__(self, backend: Backend, *, concurrency: int = 8) -> None:
        self._backend = backend
        self._concurrency = concurrency
        self._errands: dict[str, _Errand] = {}
        # As many errands as boxes exist, and those are bounded by the pools.
        self._send, self._receive = anyio.create_memory_object_stream[_Errand](math.inf)
        self._any_gone = anyio.Event()
        self._on_gone: list[Callable[[str], None]] = []

    def when_gone(self, callback: Callable[[str], None]) -> None:
        """Have `callback(box_id)` called, synchronously, for every box that is gone."""
        self._on_gone.append(callback)

    def dispose(self, box_id: str, ref: BoxRef | None, guest: Guest | None = None) -> anyio.Event:
        """Begin to remove a box; the event is set once it is gone. Asking twice is asking once."""
        errand = self._errands.get(box_id)
        if errand is None:
            errand = self._errands[box_id] = _Errand(box_id, ref, guest)
            self._send.send_nowait(errand)
        return errand.gone

    @property
    def box_ids(self) -> set[str]:
        """The boxes that are being removed."""
        return set(self._errands)

    async def next_gone(self) -> None:
        """Wait until one more box is gone."""
        await self._any_gone.wait()

    @property
    def pending(self) -> int:
        """Boxes not yet gone."""
        return len(self._errands)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. What was not removed by then is found at the next start."""
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            for number in range(self._concurrency):
                tasks.start_soon(self._work, tasks, name=f"dispose-{number}")
            task_status.started()

    async def _work(self, tasks: TaskGroup) -> None:
        async for errand in self._receive:
            if not await self._try(errand):
                tasks.start_soon(self._retry, errand, name=f"dispose-again-{errand.box_id}")

    async def _retry(self, errand: _Errand) -> None:
        pause = _FIRST_RETRY_S
        await anyio.sleep(pause)
        while not await self._try(errand):
            pause = min(pause * 2, _LONGEST_RETRY_S)
            await anyio.sleep(pause)

    async def _try(self, errand: _Errand) -> bool:
        try:
            with anyio.fail_after(_DISPOSE_S):
                if errand.guest is not None:
                    await errand.guest.aclose()
                if errand.ref is None:
                    await self._backend.dispose_remains(errand.box_id)
                else:
                    await self._backend.dispose(errand.ref)
        except (SandboxdError, TimeoutError) as error:
            log.warning("dispose.failed", box_id=errand.box_id, error=str(error) or "timed out")
            return False
        del self._errands[errand.box_id]
        for callback in self._on_gone:
            callback(errand.box_id)
        errand.gone.set()
        self._any_gone.set()
        self._any_gone = anyio.Event()
        return True
