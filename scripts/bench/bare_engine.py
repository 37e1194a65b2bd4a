"""The engine without us, as anybody would use it: through the docker SDK."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import docker
from docker.models.containers import Container

_HOST_VARIABLE, _IMAGE_VARIABLE = "SANDBOXD_TEST_ENGINE", "SANDBOXD_TEST_IMAGE"
_IMAGE = "sandboxd/python:latest"
_CALL_S = 120
_BOX_LABEL = "sandboxd.box"


def address() -> str:
    """Where the engine is; empty: the usual place."""
    return os.environ.get(_HOST_VARIABLE) or os.environ.get("DOCKER_HOST", "")


def image() -> str:
    """What all containers of the bench are made of."""
    return os.environ.get(_IMAGE_VARIABLE, _IMAGE)


class BareEngine:
    """Blocking. Every container that it makes goes with it."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client
        self._made: list[Container] = []

    def start_one(self) -> None:
        """Create and start a container with no network, which does nothing."""
        made = self._client.containers.create(image(), ["sleep", "infinity"], network_mode="none")
        self._made.append(made)
        made.start()

    def starts_per_s(self, *, at_once: int, total: int) -> float:
        """How many containers a second start, so many at a time."""
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as threads:
            for _ in threads.map(lambda _: self.start_one(), range(total)):
                pass
        return total / (time.perf_counter() - began)

    def clear(self) -> None:
        """Remove what was made."""
        made, self._made = self._made, []
        with ThreadPoolExecutor(2) as threads:
            for _ in threads.map(lambda one: one.remove(force=True, v=True), made):
                pass

    def container_of(self, box_id: str) -> Container:
        """The container of a box of ours."""
        (found,) = self._client.containers.list(filters={"label": f"{_BOX_LABEL}={box_id}"})
        return found


@contextmanager
def bare_engine() -> Iterator[BareEngine]:
    """The engine that the daemon uses too."""
    where = address() or None  # the SDK's own default else
    client = docker.DockerClient(base_url=where, timeout=_CALL_S, max_pool_size=32)
    engine = BareEngine(client)
    try:
        yield engine
    finally:
        engine.clear()
        client.close()
