"""One daemon on the local backend, spoken to over plain HTTP as an outsider would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.speaker import CONFIG, Speaker
from tests.support.daemon import RunningDaemon, run_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon without keys."""
    with run_daemon(tmp_path_factory.mktemp("contract"), backend="local", config=CONFIG) as running:
        yield running


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
