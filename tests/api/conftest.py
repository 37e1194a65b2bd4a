"""One daemon on the fake backend with two keys, spoken to over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import run_daemon

CONFIG = """
[server]
api_keys = [{{name = "alice", key_file = "{alice}"}}, {{name = "bob", key_file = "{bob}"}}]

[templates.python]
image = "host"
env = {{FROM_TEMPLATE = "yes"}}
pool = {{ready = 2, max = 20}}

[templates.small]
image = "host"
pool = {{ready = 0, max = 1, queue = 1}}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The daemon's address."""
    folder: Path = tmp_path_factory.mktemp("api")
    for name in ("alice", "bob"):
        (folder / name).write_text(f"{name}-secret-key\n")
    config = CONFIG.format(alice=folder / "alice", bob=folder / "bob")
    with run_daemon(folder, config=config) as daemon:
        yield daemon.url


@pytest.fixture
def alice(url: str) -> Iterator[httpx.Client]:
    """A caller with a key."""
    headers = {"Authorization": "Bearer alice-secret-key"}
    with httpx.Client(base_url=url, headers=headers, timeout=15) as client:
        yield client


@pytest.fixture
def bob(url: str) -> Iterator[httpx.Client]:
    """Another."""
    headers = {"Authorization": "Bearer bob-secret-key"}
    with httpx.Client(base_url=url, headers=headers, timeout=15) as client:
        yield client


@pytest.fixture
def sandbox(alice: httpx.Client) -> Iterator[str]:
    """The path of a sandbox that Alice has leased."""
    body = alice.post("/v1/sandboxes", json={"template": "python"}).json()
    path = f"/v1/sandboxes/{body['id']}"
    yield path
    alice.delete(path)
