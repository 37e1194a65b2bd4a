"""What the SDK's tests share: both event loops, and one real daemon over the fake backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sandboxd_client import AsyncSandboxd, Sandboxd
from tests.support.daemon import RunningDaemon, run_daemon

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 4, max = 64, starting = 8, queue = 1000}

[templates.single]
image = "one"
pool = {ready = 0, max = 1, starting = 1, queue = 10}
"""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The SDK runs on either loop."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all tests of this process."""
    with run_daemon(tmp_path_factory.mktemp("daemon"), config=CONFIG) as running:
        yield running


@pytest.fixture
async def client(daemon: RunningDaemon) -> AsyncIterator[AsyncSandboxd]:
    """A client of that daemon."""
    async with AsyncSandboxd(daemon.url) as client:
        yield client


@pytest.fixture
def sync_client(daemon: RunningDaemon) -> Iterator[Sandboxd]:
    """The synchronous twin's client of that daemon."""
    with Sandboxd(daemon.url) as client:
        yield client


@pytest.fixture
def daemon_url(daemon: RunningDaemon) -> str:
    """Where that daemon is."""
    return daemon.url
