"""Everything that is ours: containers by their label, and directories that have none."""

from __future__ import annotations

from typing import Any

from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.labels import BOX, order_labels, owned_by
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.reaching.way import Reach
from sandboxd.backends.docker.records import Whereabouts, record_of_container, reference
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.watching.living import Roster
from sandboxd.backends.protocol import OwnedBox

_Facts = dict[str, Any]


class Census:
    """Counts the boxes of one installation."""

    def __init__(
        self, engine: Engine, roster: Roster, places: Places, *, reach: Reach, installation: str
    ) -> None:
        self._engine = engine
        self._reach = reach
        self._roster = roster
        self._places = places
        self._installation = installation

    async def take(self) -> list[OwnedBox]:
        """Every box and remains. Raises `backend_unavailable`."""
        # Directories first: one whose container comes meanwhile is counted with it.
        directories = await to_thread.run_sync(self._places.list_ids)
        try:
            containers: list[_Facts] = await self._engine.call(
                self._engine.api.containers, all=True, filters=owned_by(self._installation)
            )
        except EngineRefused as refusal:
            raise call_refused(refusal) from refusal
        found = {}
        for container in containers:
            owned = await self._owned(container)
            found[owned.box_id] = owned
        for box_id in directories:
            found.setdefault(box_id, OwnedBox(box_id=box_id, labels={}, ref=None, alive=False))
        return list(found.values())

    async def _owned(self, container: _Facts) -> OwnedBox:
        labels: dict[str, str] = container.get("Labels") or {}
        box_id, container_id = labels.get(BOX, ""), str(container["Id"])
        ordered = order_labels(labels)
        box = self._roster.get(box_id)
        if box is not None and box.record.container_id == container_id:
            alive, record = not box.is_dead, box.record
        elif container.get("State") == "created":
            return OwnedBox(box_id=box_id, labels=ordered, ref=None, alive=False)
        else:
            where = await self._where(container)
            record = record_of_container(box_id, container_id, labels, where)
            alive = where != Whereabouts()
        return OwnedBox(box_id=box_id, labels=ordered, ref=reference(record), alive=alive)

    async def _where(self, container: _Facts) -> Whereabouts:
        """Where its guest is; nowhere if it has ended by now."""
        if container.get("State") not in {"running", "paused"}:
            return Whereabouts()
        try:
            facts: _Facts = await self._engine.call(
                self._engine.api.inspect_container, container["Id"]
            )
        except EngineRefused:
            return Whereabouts()
        return await self._reach.where(facts)
