"""A sandbox that has room for a few kernels, and one of them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.contract.speaker import Speaker
from tests.support.cells import Kernel, add_liar, open_kernel
from tests.support.daemon import RunningDaemon

ROOM = {"memory_mb": 768, "pids": 256}


@pytest.fixture(scope="module")
def roomy(daemon: RunningDaemon) -> Iterator[Speaker]:
    """For all tests of a module that leave it as it was."""
    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        body = {"template": "python", "resources": ROOM}
        made = Speaker(http, f"/v1/sandboxes/{http.post('/v1/sandboxes', json=body).json()['id']}")
        add_liar(made)
        yield made
        http.delete(made.path)


@pytest.fixture
def kernel(roomy: Speaker) -> Iterator[Kernel]:
    """A Python kernel of its own for each test."""
    made = open_kernel(roomy)
    yield made
    roomy.http.delete(roomy.path + made.path)


@pytest.fixture
def liar(roomy: Speaker) -> Iterator[Kernel]:
    """The kernel that misbehaves on order."""
    made = open_kernel(roomy, "liar")
    yield made
    roomy.http.delete(roomy.path + made.path)
