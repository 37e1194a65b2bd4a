"""Everything that is ours: containers by their label, and directories that have none."""

from __future__ import annotations

from typing import Any

from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.labels import BOX, order_labels, owned_by
from sandboxd.backends.docker.living import Roster
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.records import record_of_container, reference
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.protocol import OwnedBox
from sandboxd.kernel.processes import ProcessMark, mark_process, pid_namespace

_Facts = dict[str, Any]


class Census:
    """Counts the boxes of one installation."""

    def __init__(
        self, engine: Engine, roster: Roster, places: Places, *, installation: str
    ) -> None:
        self._engine = engine
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
            mark = await self._process(container)
            record = record_of_container(box_id, container_id, labels, mark)
            alive = mark is not None
        return OwnedBox(box_id=box_id, labels=ordered, ref=reference(record), alive=alive)

    async def _process(self, container: _Facts) -> ProcessMark | None:
        """Its first process; None if it has none by now."""
        if container.get("State") not in {"running", "paused"}:
            return None
        try:
            facts: _Facts = await self._engine.call(
                self._engine.api.inspect_container, container["Id"]
            )
        except EngineRefused:
            return None
        pid = int(facts["State"]["Pid"])
        return mark_process(pid, pid_ns=pid_namespace(pid) or 0) if pid else None
