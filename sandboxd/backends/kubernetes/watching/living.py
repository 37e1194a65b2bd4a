"""The boxes that live: each death is told once, with its cause, as soon as the server tells of it.

What a pod's node says is brought here by the book; why a box died is judged by others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from sandboxd.backends.kubernetes.pods import Pod
from sandboxd.backends.kubernetes.reaching.first_line import FirstLine
from sandboxd.backends.kubernetes.records import BoxRecord, record_of_pod
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.parts.roll import Roll
from sandboxd.backends.protocol import Death


@dataclass(slots=True, eq=False, kw_only=True)
class LivingBox:
    """A box under watch.

    pod: as it was last told. over: set once nothing in it runs any more. removed: its pod is gone.
    is_ours: being removed at a caller's wish, which is no death to tell. first: a line to its guest
    that nobody has used.
    """

    record: BoxRecord
    pod: Pod
    over: anyio.Event = field(default_factory=anyio.Event)
    removed: bool = False
    gone: anyio.Event = field(default_factory=anyio.Event)
    death: Death | None = None
    is_ours: bool = False
    pidfd: int | None = None
    first: FirstLine = field(default_factory=FirstLine)

    @property
    def box_id(self) -> str:
        """Its id."""
        return self.record.box_id

    @property
    def is_dead(self) -> bool:
        """Whether it has died, told or not."""
        return self.over.is_set()


Examine = Callable[[BoxRecord, LivingBox], Awaitable[Death]]


class Roster(Roll[LivingBox]):
    """Who lives, and who wants to know of deaths."""

    def __init__(self, tasks: TaskGroup, book: PodBook, *, examine: Examine) -> None:
        """examine: says why a dead box died."""
        super().__init__(tasks)
        self._examine = examine
        book.when_changed(self._changed, self._gone)

    def add(self, pod: Pod) -> LivingBox:
        """Watch a box from now on."""
        return self._enter(LivingBox(record=record_of_pod(pod), pod=pod))

    def forget(self, box_id: str) -> None:
        """Let go of a box that was removed."""
        box = self._strike(box_id)
        if box is not None:
            box.over.set()  # ends the watch

    def _changed(self, pod: Pod) -> None:
        box = self._box_of(pod)
        if box is not None:
            if not box.is_dead:
                box.pod = pod  # as it was at its end; what comes later is our own doing
            if pod.is_over:
                box.over.set()

    def _gone(self, pod: Pod) -> None:
        box = self._box_of(pod)
        if box is not None:
            box.removed = True
            if not box.is_dead:
                box.pod = pod
            box.over.set()

    def _box_of(self, pod: Pod) -> LivingBox | None:
        box = self.get(pod.box_id)
        return box if box is not None and box.record.uid == pod.uid else None

    async def _until_dead(self, box: LivingBox) -> None:
        try:
            await box.over.wait()
        finally:
            box.first.close()

    async def _cause(self, box: LivingBox) -> Death:
        return await self._examine(box.record, box)
