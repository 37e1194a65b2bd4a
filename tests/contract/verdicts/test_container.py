"""What others do to a sandbox's container, and its engine: named, masked, and never the agent's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import docker
import pytest

from sandboxd_client import BackendUnavailable, Sandbox, Sandboxd, SandboxLost
from tests.conftest import EngineHost
from tests.contract.cases.houses import House, house
from tests.contract.speaker import eventually
from tests.contract.verdicts.kinds import (
    DIED_FOR_UNKNOWN,
    NODE_LOST,
    assert_ended,
    problem_verdict,
    refused,
    verdict,
)
from tests.support.docker_service import Containers
from tests.support.engine import TestEngine, engine, load_test_image, missing

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture(scope="module")
def backend() -> str:
    """Only here are there containers."""
    return "docker"


@pytest.fixture
def engine_client(engine_below: EngineHost) -> Iterator[docker.APIClient]:
    """Somebody else's line to the engine."""
    client = docker.APIClient(base_url=engine_below.host, version="1.41", timeout=60)
    with closing(client):
        yield client


def container_of(house: House, sandbox: Sandbox) -> str:
    """The engine's name for it."""
    assert house.engine is not None
    found = Containers(house.engine.host, house.service)
    return str(found.facts(house.box_of(sandbox.id))["Id"])


@pytest.mark.parametrize("how", ["kill", "stop", "remove", "restart"])
def test_who_ends_a_container_behind_our_back_is_somebody_and_not_the_agent(
    shared_house: House, box: Sandbox, engine_client: docker.APIClient, how: str
) -> None:
    container = container_of(shared_house, box)
    acts: dict[str, Callable[[], object]] = {
        "kill": lambda: engine_client.kill(container),
        "stop": lambda: engine_client.stop(container, timeout=1),
        "remove": lambda: engine_client.remove_container(container, force=True),
        "restart": lambda: engine_client.restart(container, timeout=1),
    }
    with ThreadPoolExecutor(1) as threads:
        caller = threads.submit(refused, lambda: box.exec("sleep 300"))
        eventually(lambda: bool(box.execs()), within_s=10, what="it runs")
        acts[how]()
        error = caller.result(30)
    assert isinstance(error, SandboxLost)
    assert problem_verdict(error) == ("sandbox_lost", "unknown", True, False)
    evidence = assert_ended(box, DIED_FOR_UNKNOWN)
    if how != "remove":
        assert evidence["signal"] in {9, 15}


def test_a_paused_container_goes_on_where_it_was(
    shared_house: House, box: Sandbox, engine_client: docker.APIClient
) -> None:
    container = container_of(shared_house, box)
    with ThreadPoolExecutor(1) as threads:
        caller = threads.submit(box.exec, "sleep 1; echo on; exit 5")
        eventually(lambda: bool(box.execs()), within_s=10, what="it runs")
        engine_client.pause(container)
        try:
            eventually(
                lambda: engine_client.inspect_container(container)["State"]["Paused"],
                within_s=10,
                what="it is paused",
            )
            assert not caller.done()
        finally:
            engine_client.unpause(container)
        result = caller.result(60)
    assert verdict(result) == ("exited", None, None, False, 5)
    assert result.stdout == "on\n"


@pytest.fixture
def own_engine() -> Iterator[tuple[TestEngine, EngineHost]]:
    """An engine that may be stopped."""
    with engine() as started:
        yield started, EngineHost(started.host, load_test_image(started, name="base"))


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_an_engine_that_stops_takes_its_sandboxes_along_and_that_is_ours(
    own_engine: tuple[TestEngine, EngineHost], tmp_path: Path, how: str
) -> None:
    started, host = own_engine
    with (
        house(tmp_path, host, pool="ready = 0, max = 4", template="", more="") as opened,
        Sandboxd(url=opened.url) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        sandbox = client.lease("python")
        caller = threads.submit(refused, lambda: sandbox.exec("sleep 300"))
        eventually(lambda: bool(sandbox.execs()), within_s=10, what="it runs")
        getattr(started, how)()
        error = caller.result(60)
        assert problem_verdict(error) == ("sandbox_lost", "infra", True, False)
        assert_ended(sandbox, NODE_LOST)
        if how == "stop":
            away = refused(lambda: client.lease("python", wait_timeout_s=2))
            assert isinstance(away, BackendUnavailable)
            assert problem_verdict(away) == ("backend_unavailable", "infra", True, True)
            started.start()
        with client.lease("python", wait_timeout_s=60) as after:
            assert after.exec("echo back").stdout == "back\n"
