"""When to measure which box's disk: in turns, and only one that ran since it was last measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

# Boxes are looked at in turns, so that a thousand of them do not keep a core busy all at once.
_TURNS = 10


class Measured(Protocol):
    """What a round needs of a box.

    cpu_measured: the processor time it had used when its disk was last measured.
    rests: left out of the next round, where that time is not known.
    """

    gone: anyio.Event
    is_ours: bool
    disk_bytes: int | None
    cpu_measured: int | None
    rests: bool

    @property
    def box_id(self) -> str:
        """Its id."""
        ...


B = TypeVar("B", bound=Measured)


class DiskRounds(Generic[B]):
    """Goes round the living boxes, one at a time."""

    def __init__(
        self,
        *,
        living: Callable[[], Sequence[B]],
        cpu_used: Callable[[B], int | None],
        measure: Callable[[B], Awaitable[bool]],
        every_s: float,
        limiter: CapacityLimiter,
    ) -> None:
        """cpu_used: may block. measure: False where no reading could be had."""
        self._living = living
        self._cpu_used = cpu_used
        self._measure = measure
        self._every_s = every_s
        self._limiter = limiter

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for turn in range(_TURNS):
                await anyio.sleep(self._every_s / _TURNS)
                # By name, so that a box keeps its turn while others come and go.
                boxes = [box for box in self._living() if hash(box.box_id) % _TURNS == turn]
                if boxes:
                    await self._look_at(boxes)

    async def _look_at(self, boxes: list[B]) -> None:
        ran = await to_thread.run_sync(
            lambda: [(box, self._cpu_used(box)) for box in boxes], limiter=self._limiter
        )
        for box, cpu_used in ran:
            if box.gone.is_set() or box.is_ours:
                continue
            if cpu_used is not None and cpu_used == box.cpu_measured:
                continue
            if box.rests:
                box.rests = False
                continue
            before = box.disk_bytes
            if not await self._measure(box):
                continue
            # As it stood before: what is written meanwhile is for the next round.
            box.cpu_measured = cpu_used
            box.rests = cpu_used is None and box.disk_bytes == before
