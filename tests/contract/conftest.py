"""One daemon on each backend, spoken to over plain HTTP as an outsider would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxd.backends.local.boxes import parse_documents
from tests.contract.columns import below_of, column_of
from tests.contract.speaker import Speaker, config
from tests.support.cluster import TestCluster
from tests.support.cluster_pods import Pods
from tests.support.daemon import RunningDaemon, run_daemon
from tests.support.docker_service import Containers
from tests.support.service import Service, service


@pytest.fixture(
    scope="module",
    params=[
        "local",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.timeout(120)]),
    ],
)
def backend(request: pytest.FixtureRequest) -> str:
    """What the sandboxes stand on."""
    return str(request.param)


@pytest.fixture(scope="module")
def settings(backend: str, request: pytest.FixtureRequest) -> str:
    """The daemon's configuration."""
    return config(column_of(below_of(backend, request)))


@pytest.fixture(scope="module")
def daemon(
    backend: str, settings: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    """A daemon without keys."""
    place = tmp_path_factory.mktemp("contract")
    with run_daemon(place, backend=backend, config=settings) as running:
        yield running


@pytest.fixture
def open_service(
    backend: str, settings: str, tmp_path: Path
) -> Callable[[], AbstractContextManager[Service]]:
    """Opens a daemon that a test may stop."""
    return partial(service, tmp_path, backend=backend, config=settings)


@pytest.fixture
def first_process(backend: str, request: pytest.FixtureRequest) -> Callable[[Service, str], int]:
    """Finds this machine's number of the first process in a box of that daemon."""
    below = below_of(backend, request)
    if isinstance(below, TestCluster):
        return lambda daemon, box_id: Pods(below, daemon).pid(box_id)
    if below is not None:
        return lambda daemon, box_id: Containers(below.host, daemon).pid(box_id)

    def of_local(daemon: Service, box_id: str) -> int:
        record = parse_documents((daemon.state / "boxes" / box_id / "box.json").read_text())
        return int(record["process"]["pid"])

    return of_local


@pytest.fixture
def http(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    """A caller."""
    with httpx.Client(base_url=daemon.url, timeout=30) as client:
        yield client


@pytest.fixture
def can(http: httpx.Client) -> dict[str, Any]:
    """What this daemon's backend declares that it can do."""
    told: dict[str, Any] = http.get("/v1/version").json()
    return {**told["capabilities"], "limits": told["limits"]}


@pytest.fixture
def sandbox(http: httpx.Client) -> Iterator[Speaker]:
    """A sandbox of its own for each test."""
    body = http.post("/v1/sandboxes", json={"template": "python"}).json()
    yield Speaker(http, f"/v1/sandboxes/{body['id']}")
    http.delete(f"/v1/sandboxes/{body['id']}")
