"""Daemons whose sandboxes are brought to their end, on each backend, each for its own cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sandboxd_client import Sandbox, Sandboxd
from tests.conftest import EngineHost
from tests.contract.cases.houses import House, house
from tests.contract.verdicts.kinds import MEMORY_MB, PIDS, templates
from tests.support.engine import engine, load_test_image, missing
from tests.support.limits import READ_LIMITS, assert_held

OpenHouse = Callable[..., AbstractContextManager[House]]


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> str:
    """Those that the cases speak of; what is Kubernetes' own stands apart."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine_below(backend: str, request: pytest.FixtureRequest) -> EngineHost | None:
    """The container engine that all tests share, if sandboxes stand on one."""
    return request.getfixturevalue("engine_host") if backend == "docker" else None


@pytest.fixture(scope="module")
def shared_house(
    engine_below: EngineHost | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """One daemon for all that leave it as it was."""
    folder = tmp_path_factory.mktemp("verdicts")
    with _opened(folder, engine_below, pool="ready = 1, max = 12") as opened:
        yield opened


@pytest.fixture
def client(shared_house: House) -> Iterator[Sandboxd]:
    """A caller of it."""
    with Sandboxd(url=shared_house.url) as opened:
        yield opened


@pytest.fixture
def box(client: Sandboxd) -> Iterator[Sandbox]:
    """A sandbox, to be ended."""
    with client.lease("python") as sandbox:
        yield sandbox


@pytest.fixture
def small(client: Sandboxd) -> Iterator[Sandbox]:
    """A sandbox whose limits of processes and memory hold, read back."""
    with client.lease("small") as sandbox:
        assert_held(sandbox.exec(READ_LIMITS).stdout, pids=PIDS, memory_mb=MEMORY_MB)
        yield sandbox


@pytest.fixture
def open_own_house(tmp_path: Path, engine_below: EngineHost | None) -> OpenHouse:
    """Opens a daemon of the test's own, that it may kill: `open_own_house(pool=…, more=…)`."""
    return lambda **wishes: _opened(tmp_path, engine_below, **wishes)


@pytest.fixture
def open_house_apart(tmp_path: Path, backend: str) -> OpenHouse:
    """The same with control groups, and an engine, that are nobody else's."""

    @contextmanager
    def opened(**wishes: str) -> Iterator[House]:
        if backend == "local":
            with _opened(tmp_path, None, **wishes) as found:
                yield found
            return
        if gap := missing():
            pytest.skip(gap)
        with engine() as own:
            host = EngineHost(own.host, load_test_image(own))
            with _opened(tmp_path, host, **wishes) as found:
                yield found

    return opened


def _opened(
    folder: Path,
    below: EngineHost | None,
    *,
    pool: str = "ready = 1, max = 8",
    template: str = "",
    more: str = "",
) -> AbstractContextManager[House]:
    return house(folder, below, pool=pool, template=template, more=templates(below) + more)
