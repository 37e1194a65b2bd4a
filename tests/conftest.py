"""What every test may use: an event loop on real time, or one whose clock jumps.

A test module says `pytestmark = pytest.mark.anyio`, and `pytest.mark.virtual_time` besides if
nothing in it waits for the outside world: then it runs on trio, whose clock jumps ahead whenever
all tasks wait, so that hours take milliseconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import trio.testing

from tests.support.cluster import DIRECTORY_VARIABLE, TestCluster, cluster_for_tests
from tests.support.cluster import missing as cluster_missing
from tests.support.engine import engine_for_tests, load_test_image, missing
from tests.support.far_engine import far_engine
from tests.support.podman import missing as podman_missing
from tests.support.podman import podman_engine

Loop = tuple[str, dict[str, Any]]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks that these fixtures read. A shell that starts us in the background has us
    ignore SIGINT, and so would every program that a test interrupts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "virtual_time: run on trio with a clock that jumps")


def asyncio_loop() -> Loop:
    """Real time, as the daemon runs."""
    return ("asyncio", {"use_uvloop": False})


def jumping_loop() -> Loop:
    """Virtual time. Not for tests with sockets or processes: their waits would be jumped too."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Loop:
    """The loop that the test's mark asks for."""
    if request.node.get_closest_marker("virtual_time") is not None:
        return jumping_loop()
    return asyncio_loop()


@dataclass(frozen=True, slots=True)
class EngineHost:
    """A running container engine of the tests' own, and the image that it holds for them."""

    host: str
    image: str


@pytest.fixture(scope="session")
def engine_host() -> Iterator[EngineHost]:
    """One engine for all tests that leave it as they found it; others start one of their own.

    Where none can be had the tests are skipped, but never in CI.
    """
    if not os.environ.get("SANDBOXD_TEST_ENGINE"):
        _need_an_engine()
    with engine_for_tests() as (host, image):
        yield EngineHost(host, image)


@pytest.fixture(scope="session")
def far_engine_host() -> Iterator[EngineHost]:
    """The same on as good as another machine: it is reached by TCP, and so are its containers."""
    _need_an_engine()
    with far_engine() as started:
        yield EngineHost(started.tcp, load_test_image(started))


@pytest.fixture(scope="session")
def podman_host() -> Iterator[EngineHost]:
    """The same by Podman's service; only where there is one."""
    if gap := podman_missing():
        pytest.skip(gap)
    with podman_engine() as (started, image):
        yield EngineHost(started.host, image)


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """One Kubernetes cluster for all tests; skipped where none can be had, but never in CI."""
    if not os.environ.get(DIRECTORY_VARIABLE) and (gap := cluster_missing()):
        _fail_or_skip(gap)
    with cluster_for_tests() as started:
        yield started


def _need_an_engine() -> None:
    if gap := missing():
        _fail_or_skip(gap)


def _fail_or_skip(gap: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(gap)
    pytest.skip(gap)


# Of what runs on Kubernetes as it does on every backend, these stand for all in every run: the rest
# makes some hundred pods more, and belongs to `make test-kubernetes-long`.
_ALWAYS_ON_KUBERNETES = (
    "conformance/backend",
    "integration/kubernetes",
    "integration/helm",
    "contract/cases/test_k8",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before marks are asked for."""
    for item in items:
        if item.get_closest_marker("kubernetes") and not any(
            part in item.path.as_posix() for part in _ALWAYS_ON_KUBERNETES
        ):
            item.add_marker(pytest.mark.slow)
