"""What a run with faults stands on: a backend, its boxes seen and upset from outside, and what else
may be upset below the daemon. All of it blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sandboxd.backends.local import LocalSettings
from sandboxd.backends.local.boxes import parse_documents
from sandboxd.linux.processes import ProcessMark, start_ticks
from tests.faults.inhabitants import Process, held, parent_of, words_of
from tests.faults.pods_yard import KubernetesYard
from tests.faults.stock import READY
from tests.support.cluster import cluster_for_tests
from tests.support.docker_service import Containers, config_on
from tests.support.engine import TestEngine, engine, load_test_image
from tests.support.local_traces import traces
from tests.support.service import Service

_POOL = f"ready = {READY}, max = 24, starting = 4"


class Yard(Protocol):
    """One backend's. excused: ends of leases, and codes, that what it upsets accounts for.

    slowness: how much longer than on the fastest a round must be for work to get done in it.
    """

    backend: str
    config: str
    slowness: float
    excused: frozenset[str]

    def box_ids(self, service: Service) -> set[str]:
        """The boxes that exist."""
        ...

    def guest(self, service: Service, box_id: str) -> AbstractContextManager[Process | None]:
        """A box's first process; None if there is none, or it cannot be told."""
        ...

    def launcher(self, service: Service, box_id: str) -> AbstractContextManager[Process | None]:
        """A process outside of the box that it needs no more once it runs; None for none."""
        ...

    @property
    def remove(self) -> Callable[[Service, str], None] | None:
        """Takes a whole box away, as an operator might; None where that is not done."""
        ...

    def ran(self, service: Service, box_id: str) -> list[str]:
        """What commands wrote down in the box, read from outside; empty where it cannot be."""
        ...

    def upset(self, chance: random.Random) -> str:
        """Upset what the daemon stands on, and put it right again; says how. Empty: nothing is."""
        ...

    def traces(self, service: Service) -> list[str]:
        """What is left of the service once it ended."""
        ...


class LocalYard:
    """Boxes are processes of this machine, and nothing lies below the daemon."""

    backend = "local"
    slowness = 1.0
    remove = None  # a box is its first process, which is killed anyway
    config = f"""
[templates.python]
image = "host"
idle_timeout_s = 8
pool = {{{_POOL}}}
"""
    excused = frozenset({"start_failed"})  # boxes are killed in the making too

    def box_ids(self, service: Service) -> set[str]:
        """Every box has a directory."""
        return {entry.name for entry in (service.state / "boxes").iterdir()}

    @contextmanager
    def guest(self, service: Service, box_id: str) -> Iterator[Process | None]:
        """The one that was written down, if that still lives."""
        mark = None
        with suppress(OSError):
            text = (service.state / "boxes" / box_id / "box.json").read_text(errors="replace")
            mark = ProcessMark.from_facts(parse_documents(text).get("process") or {})

        def is_it(pid: int) -> bool:
            return mark is not None and start_ticks(pid) == mark.start_ticks

        with held(mark.pid if mark is not None else 0, is_it=is_it) as process:
            yield process

    @contextmanager
    def launcher(self, service: Service, box_id: str) -> Iterator[Process | None]:
        """The bubblewrap that waits outside."""
        outer = 0
        with self.guest(service, box_id) as guest, suppress(OSError):
            outer = parent_of(guest.pid) if guest is not None else 0
        with held(outer, is_it=lambda pid: box_id.encode() in words_of(pid)) as process:
            yield process

    def ran(self, service: Service, box_id: str) -> list[str]:
        """From the directory that the box's writes go to."""
        with suppress(OSError):
            home = service.state / "boxes" / box_id
            return (home / "upper-top" / "workspace" / "ran").read_text().split()
        return []

    def upset(self, chance: random.Random) -> str:
        """There is nothing."""
        return ""

    def traces(self, service: Service) -> list[str]:
        """By the installation's name."""
        installation = (service.state / "installation").read_text()
        return traces(LocalSettings(state_dir=service.state, installation=installation))


class DockerYard:
    """Boxes are containers of an engine of its own, which stops, is killed and comes back."""

    backend = "docker"
    slowness = 4.0
    remove = None  # a removed container is told as a killed one is
    # A daemon is back later than callers wait for it, where many boxes are to be looked at.
    excused = frozenset({"node_lost", "backend_unavailable", "start_failed", "api_unreachable"})

    def __init__(self, engine: TestEngine, image: str) -> None:
        self._engine = engine
        self.config = config_on(engine.host, image, pool=_POOL)

    def box_ids(self, service: Service) -> set[str]:
        """Every box has a container."""
        return Containers(self._engine.host, service).box_ids()

    @contextmanager
    def guest(self, service: Service, box_id: str) -> Iterator[Process | None]:
        """As the engine says; None too while the engine is away."""
        pid, container = 0, ""
        with suppress(Exception):
            facts = Containers(self._engine.host, service).facts(box_id)
            pid, container = int(facts["State"]["Pid"]), str(facts["Id"])

        def is_it(pid: int) -> bool:
            return container != "" and container in Path(f"/proc/{pid}/cgroup").read_text()

        with held(pid, is_it=is_it) as process:
            yield process

    @contextmanager
    def launcher(self, service: Service, box_id: str) -> Iterator[Process | None]:
        """The engine needs its own to the end."""
        yield None

    def ran(self, service: Service, box_id: str) -> list[str]:
        """Not where the engine keeps it."""
        return []

    def upset(self, chance: random.Random) -> str:
        """Stop or kill it, and start it again."""
        politely = chance.random() < 0.5
        (self._engine.stop if politely else self._engine.kill)()
        self._engine.start()
        return "engine stopped" if politely else "engine killed"

    def traces(self, service: Service) -> list[str]:
        """Containers and directories."""
        return Containers(self._engine.host, service).traces()


@contextmanager
def open_yard(backend: str, *, live_restore: bool = False) -> Iterator[Yard]:
    """One of that backend. live_restore: containers outlive a stopped engine."""
    if backend == "local":
        yield LocalYard()
        return
    if backend == "kubernetes":
        with cluster_for_tests() as below:
            yield KubernetesYard(below)
        return
    with engine(live_restore=live_restore) as started:
        yield DockerYard(started, load_test_image(started, name="base"))
