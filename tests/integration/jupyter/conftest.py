"""One daemon on each backend whose sandboxes have kernels, and Jupyter's clients at its door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import EngineHost
from tests.support.daemon import RunningDaemon, run_daemon
from tests.support.jupyter import Gateway, Kernel

CONFIG = """
{engine}
[templates.python]
image = {image}
resources = {{memory_mb = 1024, pids = 256}}
pool = {{ready = 1, max = 8}}

[templates.short]
image = {image}
idle_timeout_s = 1
pool = {{ready = 0, max = 2}}

[templates.warm]
image = {image}
kernels = ["python3"]
pool = {{ready = 1, max = 2}}
"""


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> str:
    """What the sandboxes stand on."""
    return str(request.param)


@pytest.fixture(scope="module")
def settings(backend: str, request: pytest.FixtureRequest) -> str:
    """The daemon's configuration."""
    if backend == "local":
        return CONFIG.format(engine="", image=json.dumps("host"))
    found: EngineHost = request.getfixturevalue("engine_host")
    engine = f"[backend.docker]\nhost = {json.dumps(found.host)}"
    return CONFIG.format(engine=engine, image=json.dumps(found.image))


@pytest.fixture(scope="module")
def daemon(
    backend: str, settings: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    """A daemon without keys."""
    place: Path = tmp_path_factory.mktemp("jupyter")
    with run_daemon(place, backend=backend, config=settings) as running:
        yield running


@pytest.fixture
def http(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    """A caller."""
    with httpx.Client(base_url=daemon.url, timeout=60) as client:
        yield client


@pytest.fixture
def gateway(http: httpx.Client) -> Iterator[Gateway]:
    """A leased sandbox as a kernel gateway, by its token."""
    with Gateway.lease(http) as gateway:
        yield gateway


@pytest.fixture
def kernel(gateway: Gateway) -> Kernel:
    """A kernel in it."""
    return gateway.start()
