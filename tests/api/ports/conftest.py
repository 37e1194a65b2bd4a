"""A daemon on real sandboxes with two keys, and one sandbox whose server listens."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.daemon import RunningDaemon, run_daemon
from tests.support.ports import ALICE, CONFIG, PORT, serving


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("ports")
    with run_daemon(folder, backend="local", config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def alice(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.url, headers=ALICE, timeout=15) as client:
        yield client


@pytest.fixture(scope="module")
def anybody(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    """A caller without a key."""
    with httpx.Client(base_url=daemon.url, timeout=15) as client:
        yield client


@pytest.fixture(scope="module")
def shared(alice: httpx.Client) -> Iterator[str]:
    """One sandbox for all that leave it as it was."""
    with serving(alice) as sandbox:
        yield sandbox


@pytest.fixture
def inside(shared: str) -> str:
    """Where the shared server is."""
    return f"{shared}/ports/{PORT}"
