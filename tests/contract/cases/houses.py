"""A daemon of a test's own, and what its machine holds of it, seen past the daemon."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx

from sandboxd.backends.docker.labels import owned_by
from sandboxd.backends.local.boxes import parse_documents
from tests.conftest import EngineHost
from tests.contract.columns import Below, column_of
from tests.contract.speaker import eventually
from tests.support.cluster import TestCluster
from tests.support.cluster_pods import Pods
from tests.support.docker_service import Containers
from tests.support.service import Service, service

_TEMPLATE = """
[templates.python]
image = {image}
resources = {{memory_mb = 256, pids = 256}}
pool = {{{pool}}}
{template}
"""


@dataclass(frozen=True, slots=True)
class House:
    """A running daemon, which `service` may kill, stop and start again, and the engine below it."""

    service: Service
    below: Below

    @property
    def engine(self) -> EngineHost | None:
        """The container engine, if that is what there is below."""
        return self.below if isinstance(self.below, EngineHost) else None

    @property
    def pods(self) -> Pods | None:
        """Its pods, if there is a cluster below."""
        return Pods(self.below, self.service) if isinstance(self.below, TestCluster) else None

    @property
    def url(self) -> str:
        """Where it listens, which changes with each start."""
        return self.service.url

    @property
    def kind(self) -> str:
        """Its backend."""
        return column_of(self.below).backend

    def boxes(self) -> set[str]:
        """Every box of which there is anything: a container in whatever state, or a directory."""
        if self.pods is not None:
            return self.pods.box_ids()
        if self.engine is not None:
            return Containers(self.engine.host, self.service).box_ids()
        place = self.service.state / "boxes"
        return {entry.name for entry in place.iterdir()} if place.exists() else set()

    def living(self) -> set[str]:
        """The boxes whose first process runs."""
        return {box_id for box_id in self.boxes() if self._lives(box_id)}

    def processes(self) -> list[str]:
        """The command lines on this machine that name one of its boxes, or its container."""
        names = self.boxes()
        if self.engine is not None:
            found = Containers(self.engine.host, self.service).all()
            names = {str(container["Id"]) for container in found}
        return [words for words in _command_lines() if any(name in words for name in names)]

    def other_objects(self) -> list[str]:
        """Networks and volumes of its sandboxes."""
        if self.engine is None:
            return []
        ours = owned_by(Containers(self.engine.host, self.service).installation)
        client = docker.APIClient(base_url=self.engine.host, version="1.41", timeout=30)
        with closing(client):
            networks = [found["Id"] for found in client.networks(filters=ours)]
            volumes = client.volumes(filters=ours)["Volumes"] or []
        return networks + [volume["Name"] for volume in volumes]

    def first_process(self, box_id: str) -> int:
        """This machine's number of a box's first process; 0 if there is none."""
        if self.pods is not None:
            return self.pods.pid(box_id)
        if self.engine is not None:
            return Containers(self.engine.host, self.service).pid(box_id)
        return _local_pid(self.service.state / "boxes" / box_id / "box.json")

    def remove(self, box_id: str) -> None:
        """Take a box away by hand, as an operator might: the container itself, or its process."""
        if self.pods is not None:
            self.pods.remove(box_id)
            return
        if self.engine is None:
            self.kill(box_id)
            return
        containers = Containers(self.engine.host, self.service)
        client = docker.APIClient(base_url=self.engine.host, version="1.41", timeout=30)
        with closing(client):
            client.remove_container(containers.facts(box_id)["Id"], force=True, v=True)

    def kill(self, box_id: str) -> None:
        """kill -9 of its first process, behind everybody's back."""
        if self.pods is not None:
            assert self.pods.kill(box_id)
            return
        if self.engine is not None:
            assert Containers(self.engine.host, self.service).kill(box_id)
            return
        pid = self.first_process(box_id)
        assert pid
        os.kill(pid, signal.SIGKILL)

    def pool(self) -> dict[str, Any]:
        """What the daemon says of its pool."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/v1/pools", timeout=30).json()["pools"]
        return found[0]

    def full(self, *, within_s: float = 30) -> None:
        """Wait until its stock is complete and nothing else goes on."""
        self._await_rest(lambda _: True, within_s=within_s)

    def box_of(self, sandbox_id: str) -> str:
        """The box of a lease."""
        log = httpx.get(f"{self.url}/v1/sandboxes/{sandbox_id}/logs", timeout=30).text
        lines = map(json.loads, log.splitlines())
        return next(str(line["box_id"]) for line in lines if line["event"] == "leased")

    def empty(self, *, within_s: float = 30) -> None:
        """The same with no lease left."""
        self._await_rest(lambda pool: pool["leased"] == 0, within_s=within_s)

    def errors(self) -> list[str]:
        """The lines of its log that tell of something broken."""
        lines = self.service.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "Traceback" in line or '"level": "error"' in line]

    def _await_rest(self, wanted: Callable[[dict[str, Any]], bool], *, within_s: float) -> None:
        seen: dict[str, Any] = {}

        def rests() -> bool:
            seen.update(self.pool())
            return self._at_rest(seen) and wanted(seen)

        try:
            eventually(rests, within_s=within_s, what="the pool is full, at rest")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}, {self.errors()[-3:]}") from None

    def _lives(self, box_id: str) -> bool:
        if self.pods is not None:
            return self.pods.runs(box_id)
        if self.engine is not None:
            try:
                facts = Containers(self.engine.host, self.service).facts(box_id)
            except (ValueError, docker.errors.NotFound):  # it went meanwhile
                return False
            return bool(facts["State"]["Running"])
        pid = self.first_process(box_id)
        return pid != 0 and _runs(pid)

    @staticmethod
    def _at_rest(pool: dict[str, Any]) -> bool:
        busy = pool["disposing"] or pool["making"] or pool["queued"]
        return bool(pool["ready"] == pool["target"] and not busy)


@contextmanager
def house(
    folder: Path,
    below: Below,
    *,
    pool: str = "ready = 2, max = 40",
    template: str = "",
    more: str = "",
    table: str = "",
    port: int = 0,
) -> Iterator[House]:
    """A started daemon with one template `python`; at the end nothing of it is left.

    pool, template, more: TOML, inside and below the template. table: more TOML of the backend's own
    table, where there is one. port: 0 for another at each start.
    """
    column = column_of(below)
    text = _TEMPLATE.format(image=json.dumps(column.image), pool=pool, template=template)
    with service(
        folder, backend=column.backend, config=column.table + table + text + more, port=port
    ) as running:
        opened = House(running, below)
        yield opened
        running.end()
        assert opened.boxes() == set()


def _local_pid(record: Path) -> int:
    try:
        found = parse_documents(record.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return int((found.get("process") or {}).get("pid", 0))


def _command_lines() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield (entry / "cmdline").read_bytes().decode(errors="replace")


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
