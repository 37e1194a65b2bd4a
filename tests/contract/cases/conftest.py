"""Daemons that a test may kill, and their machine as it looks past them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import EngineHost
from tests.contract.cases.houses import House, house
from tests.contract.speaker import Speaker
from tests.support.cells import Kernel, leased, open_kernel


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> str:
    """Those that the cases speak of; what is Kubernetes' own stands apart."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(backend: str, request: pytest.FixtureRequest) -> EngineHost | None:
    """The container engine below, if there is one."""
    return request.getfixturevalue("engine_host") if backend == "docker" else None


@pytest.fixture
def open_house(
    tmp_path: Path, engine: EngineHost | None
) -> Callable[..., AbstractContextManager[House]]:
    """Opens a daemon of the test's own; what may be given is `house`'s."""
    return partial(house, tmp_path, engine)


@pytest.fixture
def roomy(http: httpx.Client) -> Iterator[Speaker]:
    """A sandbox that has room for a few kernels."""
    with leased(http, resources={"memory_mb": 512, "pids": 256}) as made:
        yield made


@pytest.fixture
def kernel(roomy: Speaker) -> Kernel:
    """A Python kernel."""
    return open_kernel(roomy)
