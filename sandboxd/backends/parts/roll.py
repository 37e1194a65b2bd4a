"""The roll of the boxes that live: each has a task that waits for its death and tells it once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from sandboxd.backends.parts.watchers import Watchers
from sandboxd.backends.protocol import Death


class Enrolled(Protocol):
    """What the roll needs of a box.

    gone: set once it is dead, and then `death` says why. is_ours: being removed at a caller's wish,
    which is no death to tell. pidfd: of its first process, open until `gone`; None: not to be had.
    """

    gone: anyio.Event
    death: Death | None
    is_ours: bool

    @property
    def box_id(self) -> str:
        """Its id."""
        ...

    @property
    def pidfd(self) -> int | None:
        """Closed by the roll."""
        ...


B = TypeVar("B", bound=Enrolled)


class Roll(ABC, Generic[B]):
    """Who lives, and who wants to know of deaths."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._boxes: dict[str, B] = {}
        self._watchers = Watchers()

    @abstractmethod
    async def _until_dead(self, box: B) -> None:
        """Return once all in it is dead."""

    @abstractmethod
    async def _cause(self, box: B) -> Death:
        """Why it died."""

    def living(self) -> list[B]:
        """All that is under watch and not known to be dead."""
        return [box for box in self._boxes.values() if not box.gone.is_set()]

    def get(self, box_id: str) -> B | None:
        """The box if it is under watch; dead ones stay until they are forgotten."""
        return self._boxes.get(box_id)

    async def death_of(self, box: B) -> Death:
        """Why a dead box died, once that is known."""
        await box.gone.wait()
        return box.death or Death(box_id=box.box_id, detail="it was removed")

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths from now on."""
        return self._watchers.join()

    def _enter(self, box: B) -> B:
        """Watch it from now on; its pidfd is the roll's."""
        self._boxes[box.box_id] = box
        self._tasks.start_soon(self._attend, box, name=f"watch {box.box_id}")
        return box

    def _strike(self, box_id: str) -> B | None:
        """Let go of a box that was removed; None if it was not there."""
        return self._boxes.pop(box_id, None)

    async def _attend(self, box: B) -> None:
        try:
            await self._until_dead(box)
            if not box.is_ours:
                box.death = await self._cause(box)
        finally:
            box.gone.set()
            if box.pidfd is not None:
                os.close(box.pidfd)
        if box.death is not None and not box.is_ours:
            self._watchers.tell(box.death)
