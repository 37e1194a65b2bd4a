"""Boxes that reach the internet share a bridge of ours, which goes when nobody needs it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd.backends.docker import DockerBackend, DockerSettings, open_docker
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.model.template import Network
from sandboxd.wire.codes import ErrorCode, Fault
from tests.support.docker_boxes import clear, load_bare_image, order, spec, works
from tests.support.engine import TestEngine, engine, missing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.timeout(90),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

Client = Any  # docker.APIClient, whose types know less than it takes
_PORTS = 1023  # of a bridge of Linux
ONLINE = order(replace(spec(), network=Network(kind="internet")))


@pytest.fixture
def client() -> Iterator[Client]:
    """An engine with bridges."""
    with engine(networks=True) as started:
        opened = started.client()
        load_bare_image(opened)
        yield opened
        opened.close()


def bridges(client: Client) -> list[Any]:
    return [each for each in client.networks() if each["Name"].startswith("sandboxd-")]


async def test_one_bridge_for_all_boxes_comes_with_the_first_and_goes_with_the_last(
    client: Client, tmp_path: Path
) -> None:
    host = f"unix://{client.adapters['http+docker://'].socket_path}"
    settings = DockerSettings(state_dir=tmp_path, installation=new_id("t")[2:14], host=host)
    with anyio.fail_after(60):
        async with open_docker(settings) as backend:
            assert "internet" in backend.capabilities().networks
            await backend.make(order())
            assert bridges(client) == []
            boxes = [await backend.make(replace(ONLINE, box_id=new_id("box"))) for _ in range(2)]
            (bridge,) = bridges(client)
            assert bridge["Options"]["com.docker.network.bridge.enable_icc"] == "false"
            assert bridge["Labels"] == {"sandboxd.installation": settings.installation}
            attached = client.inspect_network(bridge["Id"])["Containers"]
            assert set(attached) == {box.details["container"] for box in boxes}
            assert all([await works(backend, box) for box in boxes])
        # Boxes outlive the daemon, and so does what they need.
        assert len(bridges(client)) == 1
        async with open_docker(settings) as again:
            await again.make(replace(ONLINE, box_id=new_id("box")))
            assert len(bridges(client)) == 1
            await clear(again)
        assert bridges(client) == []


async def test_a_network_that_an_operator_names_is_used_and_left_alone(
    client: Client, tmp_path: Path
) -> None:
    host = f"unix://{client.adapters['http+docker://'].socket_path}"
    settings = DockerSettings(
        state_dir=tmp_path, installation=new_id("t")[2:14], host=host, network="theirs"
    )
    with anyio.fail_after(60):
        async with open_docker(settings) as backend:
            await refuses(backend)
        theirs = client.create_network("theirs", driver="bridge")["Id"]
        async with open_docker(settings) as backend:
            box = await backend.make(ONLINE)
            assert list(client.inspect_network(theirs)["Containers"]) == [box.details["container"]]
            await clear(backend)
        assert client.inspect_network(theirs)["Name"] == "theirs"
        client.remove_network(theirs)


@pytest.mark.requirement("DK-10")
async def test_at_the_last_port_of_a_bridge_a_box_is_refused_by_name_and_the_others_work_on(
    tmp_path: Path,
) -> None:
    with engine(networks=True) as started, closing(started.client()) as client:
        load_bare_image(client)
        bridge = client.create_network("theirs", driver="bridge")["Id"][:12]
        settings = DockerSettings(
            state_dir=tmp_path, installation=new_id("t")[2:14], host=started.host, network="theirs"
        )
        async with open_docker(settings) as backend:
            with anyio.fail_after(60):
                first = await backend.make(replace(ONLINE, box_id=new_id("box")))
                ports = range(_PORTS - 2)
                link(started, *(f"add port{n} master br-{bridge} type veth" for n in ports))
                last = await backend.make(replace(ONLINE, box_id=new_id("box")))
                with pytest.raises(SandboxdError) as caught:
                    await backend.make(replace(ONLINE, box_id=new_id("box")))
                assert (caught.value.code, caught.value.fault) == (ErrorCode.CAPACITY, Fault.INFRA)
                assert all([await works(backend, box) for box in (first, last)])
                link(started, "delete port0")
                assert await works(backend, await backend.make(ONLINE))
                assert len(await backend.list_owned()) == 3
                await clear(backend)


def link(engine: TestEngine, *orders: str) -> None:
    """Run `ip link` where the engine has its networks, once for each order."""
    command = ["nsenter", "--net", "--target", str(engine.pid), "ip", "-batch", "-"]
    batch = "".join(f"link {order}\n" for order in orders)
    subprocess.run(command, input=batch, text=True, check=True, timeout=60)


async def refuses(backend: DockerBackend) -> None:
    with pytest.raises(SandboxdError) as caught:
        await backend.make(ONLINE)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
