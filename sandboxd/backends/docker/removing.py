"""Removing boxes: the container with its volumes, then the directory. Gone is success."""

from __future__ import annotations

from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.labels import owned_by
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.refusals import removal_refused
from sandboxd.backends.docker.watching.living import Roster
from sandboxd.errors import SandboxdError
from sandboxd.turns import Turns
from sandboxd.wire.codes import ErrorCode

_AT_ONCE = 8  # as many as anybody disposes of at once
_GOING_S = 10.0  # for a removal that is under way already
_AGAIN_S = 0.05


class Remover:
    """Removes boxes of one installation, on a lane of its own: starts never hold it up."""

    def __init__(
        self, engine: Engine, roster: Roster, places: Places, *, installation: str
    ) -> None:
        self._engine = engine.lane(_AT_ONCE)
        self._roster = roster
        self._places = places
        self._installation = installation
        self._files = CapacityLimiter(_AT_ONCE)
        self._turns = Turns()

    async def remove(self, box_id: str, container_id: str = "") -> None:
        """Remove a box. Raises `backend_unavailable` if that must be tried again.

        container_id: if it is known; else whatever carries the box's label goes.
        """
        async with self._turns.alone(box_id):
            box = self._roster.get(box_id)
            if box is not None:
                box.is_ours = True
            try:
                for each in [container_id] if container_id else await self._find(box_id):
                    await self._remove_container(each)
            except EngineRefused as refusal:
                raise removal_refused(refusal, box_id) from refusal
            await self._remove_directory(box_id)
            self._roster.forget(box_id)

    async def _find(self, box_id: str) -> list[str]:
        containers: list[dict[str, Any]] = await self._engine.call(
            self._engine.api.containers, all=True, filters=owned_by(self._installation, box_id)
        )
        return [container["Id"] for container in containers]

    async def _remove_container(self, container_id: str) -> None:
        """Until the engine knows it no longer; a removal that somebody began is waited for."""
        deadline = anyio.current_time() + _GOING_S
        while True:
            try:
                await self._engine.call(
                    self._engine.api.remove_container, container_id, v=True, force=True
                )
            except EngineRefused as refusal:
                if refusal.status == 404:
                    return
                if refusal.status != 409 or anyio.current_time() > deadline:
                    raise
            else:
                return
            await anyio.sleep(_AGAIN_S)  # the engine tells nobody when it is done

    async def _remove_directory(self, box_id: str) -> None:
        try:
            await to_thread.run_sync(self._places.remove, box_id, limiter=self._files)
        except OSError as error:
            raise SandboxdError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"the directory of box {box_id} could not be removed: {error}",
            ) from error
