"""Many isolated boxes at once: no network for each of them, and none is left."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import anyio
import docker
import pytest
from anyio import to_thread

from sandboxd.backends.docker import DockerBackend
from sandboxd.backends.docker.labels import owned_by
from sandboxd.backends.protocol import BoxRef
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Network, Resources
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, clear, order, works

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.serial]

MANY = [
    pytest.param(20, marks=pytest.mark.timeout(90)),
    pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
]

IN_TURN = [
    pytest.param(8, marks=pytest.mark.timeout(90)),
    pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]


def spec_of(engine: EngineHost, network: Network) -> BoxSpec:
    return BoxSpec(image=engine.image, network=network, resources=Resources(memory_mb=64, pids=32))


def attached(host: str) -> Counter[str]:
    """How many containers are on each network that is ours, and on none at all."""
    with closing(docker.APIClient(base_url=host, version="1.41")) as client:
        ours = [each for each in client.networks() if each["Name"].startswith("sandboxd-")]
        known = [client.inspect_network(each["Id"]) for each in ours]
        return Counter({str(each["Name"]): len(each["Containers"]) for each in known})


def networks_of(host: str, installation: str) -> list[str]:
    """Those of one installation."""
    with closing(docker.APIClient(base_url=host, version="1.41")) as client:
        return [str(each["Name"]) for each in client.networks(filters=owned_by(installation))]


async def make_many(backend: DockerBackend, spec: BoxSpec, count: int) -> list[BoxRef]:
    """At once; every one of them runs a command."""
    boxes: list[BoxRef] = []

    async def make() -> None:
        box = await backend.make(order(spec))
        assert await works(backend, box)
        boxes.append(box)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(make)
    return boxes


async def make_in_turn(engine: EngineHost, network: Network, count: int, *, networks: int) -> None:
    """One goes before the next comes. networks: how many there are while one is there."""
    installation = new_id("t")[2:14]
    options: dict[str, Any] = {"secret": b"of this test alone", "installation": installation}
    async with backend_on(engine.host, **options) as backend:
        for _ in range(count):
            with anyio.fail_after(30):
                box = await backend.make(order(spec_of(engine, network)))
                assert await works(backend, box)
                seen = await to_thread.run_sync(networks_of, engine.host, installation)
                assert len(seen) == networks
                await backend.dispose(box)
    assert await to_thread.run_sync(networks_of, engine.host, installation) == []


@pytest.mark.requirement("DK-09")
@pytest.mark.parametrize("count", MANY)
async def test_many_boxes_without_a_network_take_no_network(
    engine_host: EngineHost, count: int
) -> None:
    async with backend_on(engine_host.host) as backend:
        with anyio.fail_after(60 + count):
            boxes = await make_many(backend, spec_of(engine_host, Network(kind="none")), count)
            assert len({box.box_id for box in boxes}) == count
            assert await to_thread.run_sync(attached, engine_host.host) == {}


@pytest.mark.requirement("DK-09")
@pytest.mark.parametrize("count", IN_TURN)
async def test_many_boxes_one_after_the_other_take_no_network(
    engine_host: EngineHost, count: int
) -> None:
    await make_in_turn(engine_host, Network(kind="none"), count, networks=0)


@pytest.mark.requirement("DK-09")
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_boxes_one_after_the_other_use_up_no_network(
    far_engine_host: EngineHost,
) -> None:
    await make_in_turn(far_engine_host, Network(kind="internet"), 500, networks=1)


@pytest.mark.requirement("DK-09")
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("count", [20, 100])
async def test_many_boxes_that_must_have_a_network_share_one_which_goes_with_them(
    far_engine_host: EngineHost, count: int
) -> None:
    options: dict[str, Any] = {"secret": b"of this test alone"}
    spec = spec_of(far_engine_host, Network(kind="internet"))
    async with backend_on(far_engine_host.host, **options) as backend:
        with anyio.fail_after(120 + 3 * count):
            await make_many(backend, spec, count)
            (bridge,) = (await to_thread.run_sync(attached, far_engine_host.host)).values()
            assert bridge == count
            await clear(backend)
    assert await to_thread.run_sync(attached, far_engine_host.host) == {}
