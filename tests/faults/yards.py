"""What a run with faults stands on: a backend, its boxes seen and killed from outside, and what
else may be upset below the daemon. All of it blocks.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from sandboxd.backends.local import LocalSettings
from sandboxd.backends.local.boxes import parse_documents
from sandboxd.kernel.processes import ProcessMark, open_pidfd
from tests.support.docker_service import Containers, config_on
from tests.support.engine import TestEngine, engine, load_test_image
from tests.support.local_traces import traces
from tests.support.service import Service

READY = 3
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

    def kill_a_box(self, service: Service, chance: random.Random) -> str | None:
        """End one from outside; its id."""
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
    config = f"""
[templates.python]
image = "host"
idle_timeout_s = 8
pool = {{{_POOL}}}
"""
    excused: frozenset[str] = frozenset()

    def box_ids(self, service: Service) -> set[str]:
        """Every box has a directory."""
        return {entry.name for entry in (service.state / "boxes").iterdir()}

    def kill_a_box(self, service: Service, chance: random.Random) -> str | None:
        """By its own first process, if that is still the one that was written down."""
        records = sorted((service.state / "boxes").glob("*/box.json"))
        if not records:
            return None
        path = chance.choice(records)
        with suppress(FileNotFoundError):
            mark = parse_documents(path.read_text(errors="replace")).get("process")
            pidfd = open_pidfd(ProcessMark(**mark)) if mark else None
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
                return path.parent.name
        return None

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
    # A daemon is back later than callers wait for it, where many boxes are to be looked at.
    excused = frozenset({"node_lost", "backend_unavailable", "start_failed", "api_unreachable"})

    def __init__(self, engine: TestEngine, image: str) -> None:
        self._engine = engine
        self.config = config_on(engine.host, image, pool=_POOL)

    def box_ids(self, service: Service) -> set[str]:
        """Every box has a container."""
        return Containers(self._engine.host, service).box_ids()

    def kill_a_box(self, service: Service, chance: random.Random) -> str | None:
        """By its own first process. None too while the engine is away."""
        containers = Containers(self._engine.host, service)
        with suppress(Exception):
            box_id = chance.choice(sorted(containers.box_ids()))
            return box_id if containers.kill(box_id) else None
        return None

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
    with engine(live_restore=live_restore) as started:
        yield DockerYard(started, load_test_image(started, name="base"))
