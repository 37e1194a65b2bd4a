"""What happens to containers behind our back, and what we do about an engine that says no."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest
from anyio import to_thread

from sandboxd.backends.docker import DockerBackend
from sandboxd.backends.docker.creating import container_name
from sandboxd.backends.docker.labels import BOX, INSTALLATION
from sandboxd.backends.protocol import BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import Mount, Network
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.conftest import EngineHost
from tests.support.docker_boxes import BARE_IMAGE, backend_on, load_bare_image, order, spec, works
from tests.support.engine_proxy import Fault as CallFault
from tests.support.engine_proxy import engine_proxy

Client = Any  # docker.APIClient, whose types know less than it takes

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]


@pytest.fixture
def client(engine_host: EngineHost) -> Iterator[Client]:
    """The engine, as anybody else uses it."""
    opened = docker.APIClient(base_url=engine_host.host, version="1.41")
    load_bare_image(opened)
    yield opened
    opened.close()


@pytest.fixture
async def backend(engine_host: EngineHost, client: Client) -> AsyncIterator[DockerBackend]:
    """A backend without boxes."""
    del client  # it has brought the image
    async with backend_on(engine_host.host) as opened:
        yield opened


def state_of(client: Client, box: BoxRef) -> dict[str, Any]:
    facts: dict[str, Any] = client.inspect_container(box.details["container"])
    return facts


async def death_by(backend: DockerBackend, box: BoxRef, act: Callable[[], object]) -> Death:
    """How the box died of what `act` did."""
    with anyio.fail_after(30):
        async with backend.watch() as deaths:
            await to_thread.run_sync(act)
            death = await anext(deaths)
    assert death.box_id == box.box_id
    assert await backend.look(box) == death
    return death


@pytest.mark.parametrize("how", ["kill", "stop", "remove"])
async def test_an_end_by_somebody_elses_hand_is_told_as_that_and_blamed_on_nobody(
    backend: DockerBackend, client: Client, how: str
) -> None:
    box = await backend.make(order())
    container = box.details["container"]
    acts: dict[str, Callable[[], object]] = {
        "kill": lambda: client.kill(container),
        "stop": lambda: client.stop(container, timeout=1),
        "remove": lambda: client.remove_container(container, force=True),
    }
    death = await death_by(backend, box, acts[how])
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)
    assert "somebody" in death.detail
    await backend.dispose(box)
    assert await backend.list_owned() == []


async def test_a_kill_from_the_host_is_unknown_whatever_the_engine_says_of_memory(
    backend: DockerBackend, client: Client
) -> None:
    box = await backend.make(order())
    pid = int(box.details["pid"])
    death = await death_by(backend, box, lambda: os.kill(pid, signal.SIGKILL))
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)
    assert state_of(client, box)["State"]["ExitCode"] == 137


async def test_a_container_started_anew_is_not_the_box_it_was(
    engine_host: EngineHost, client: Client, tmp_path: Path
) -> None:
    place: dict[str, Any] = {"state_dir": tmp_path, "installation": new_id("t")[2:14]}
    async with backend_on(engine_host.host) as first:
        box = await first.make(order())
        await to_thread.run_sync(lambda: client.restart(box.details["container"], timeout=1))
        with anyio.fail_after(10):
            assert await first.look(box) is not None
            # And as one sees it who was not there.
            async with backend_on(engine_host.host, **place) as second:
                death = await second.look(box)
    assert death is not None
    assert (death.fault, death.mask) == (Fault.UNKNOWN, True)


@pytest.mark.requirement("DK-08")
async def test_a_box_whose_shim_was_killed_is_told_dead_and_is(
    backend: DockerBackend, client: Client
) -> None:
    box, other = await backend.make(order()), await backend.make(order())
    shim = parent_of(int(box.details["pid"]))
    assert "shim" in command_of(shim)
    death = await death_by(backend, box, lambda: os.kill(shim, signal.SIGKILL))
    assert death.mask
    assert not runs(int(box.details["pid"]))
    assert await works(backend, other)
    with anyio.fail_after(20):
        await backend.dispose(box)
    assert [owned.box_id for owned in await backend.list_owned()] == [other.box_id]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def runs(pid: int) -> bool:
    """Whether it does; one that is dead and waits to be reaped does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


@pytest.mark.requirement("DK-08")
async def test_a_command_never_outlives_its_box_in_our_eyes(
    backend: DockerBackend, client: Client
) -> None:
    """The container is stopped in the very moment in which a command starts."""
    for round_ in range(12):
        box = await backend.make(order())
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_until_it_ends, backend, box)
                await anyio.sleep(round_ * 0.002)
                kill = partial(client.kill, box.details["container"])
                tasks.start_soon(partial(to_thread.run_sync, kill))
            assert await backend.look(box) is not None
            await backend.dispose(box)


async def run_until_it_ends(backend: DockerBackend, box: BoxRef) -> None:
    guest = Guest(lambda: backend.connect(box))
    argv = ("/run/sandbox-guest", "serve", "--socket", "/tmp/s")
    with suppress(Exception):  # whatever it is: it comes to an end
        await guest.claim(Claim(lease_id=box.box_id, life_s=600))
        await guest.run(Command(exec_id=new_id("exec"), argv=argv), wait=True)
    await guest.aclose()


@pytest.mark.requirement("DK-04")
@pytest.mark.parametrize("running", [True, False])
async def test_a_name_that_is_taken_stops_no_box_and_its_holder_is_left_alone(
    engine_host: EngineHost, client: Client, tmp_path: Path, running: bool
) -> None:
    installation = new_id("t")[2:14]
    wanted = order()
    name = container_name(installation[:8], wanted.box_id)
    body = {"Image": BARE_IMAGE, "Cmd": ["/none"], "HostConfig": {"NetworkMode": "none"}}
    async with backend_on(engine_host.host) as maker:
        twin = await maker.make(order())
        if running:
            holder = str(twin.details["container"])
            client.rename(holder, name)
        else:
            holder = client.create_container_from_config(body, name)["Id"]
        try:
            async with backend_on(
                engine_host.host, state_dir=tmp_path, installation=installation
            ) as backend:
                box = await backend.make(wanted)
                assert await works(backend, box)
                await backend.dispose(box)
            assert client.inspect_container(holder)["Name"] == f"/{name}"
        finally:
            client.remove_container(holder, force=True)


@pytest.mark.requirement("DK-03")
@pytest.mark.parametrize(
    "fault",
    [
        CallFault("^DELETE /.*/containers/", 500, "device or resource busy", times=1),
        CallFault("^DELETE /.*/containers/", 409, "removal of container is in progress", times=5),
    ],
    ids=["busy", "in progress"],
)
async def test_a_removal_that_fails_is_told_or_waited_for_and_the_box_stays_on_the_books(
    engine_host: EngineHost, client: Client, fault: CallFault
) -> None:
    async with engine_proxy(engine_host.host) as proxy, backend_on(proxy.host) as backend:
        box = await backend.make(order())
        proxy.fail(replace(fault))
        with anyio.fail_after(30):
            if fault.status == 500:
                with pytest.raises(SandboxdError) as caught:
                    await backend.dispose(box)
                assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
                assert [owned.box_id for owned in await backend.list_owned()] == [box.box_id]
            await backend.dispose(box)
        assert await backend.list_owned() == []


async def test_an_engine_that_hangs_on_create_leaves_nothing_behind(
    engine_host: EngineHost, client: Client
) -> None:
    async with (
        engine_proxy(engine_host.host) as proxy,
        backend_on(proxy.host, ready_timeout_s=2.0) as backend,
    ):
        proxy.fail(CallFault("^POST /.*/containers/.*/start", hang=True))
        with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
            await backend.make(order())
        assert caught.value.code is ErrorCode.START_FAILED
        assert caught.value.fault is Fault.INFRA
        assert await backend.list_owned() == []


@pytest.mark.requirement("DK-10")
async def test_a_full_engine_disk_and_a_full_bridge_have_names_of_their_own(
    engine_host: EngineHost, client: Client
) -> None:
    async with engine_proxy(engine_host.host) as proxy, backend_on(proxy.host) as backend:
        for words, code in {
            "write /var: no space left on device": ErrorCode.DISK_FULL,
            "adding interface veth1 to bridge br0 failed: exchange full": ErrorCode.CAPACITY,
        }.items():
            proxy.fail(CallFault("^POST /.*/start", 500, words))
            with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
                await backend.make(order())
            assert (caught.value.code, caught.value.fault) == (code, Fault.INFRA)
        assert await backend.list_owned() == []


async def test_a_folder_that_is_not_there_is_the_templates_fault(backend: DockerBackend) -> None:
    mounts = (Mount(source="/no/such/folder", target="/data"),)
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
        await backend.make(order(replace(spec(), mounts=mounts)))
    assert (caught.value.code, caught.value.fault) == (ErrorCode.START_FAILED, Fault.TASK)
    assert "/no/such/folder" in caught.value.detail


async def test_a_container_without_its_directory_and_the_reverse_are_both_found(
    engine_host: EngineHost, client: Client, tmp_path: Path
) -> None:
    installation = new_id("t")[2:14]
    run_dir = tmp_path / "run"
    container_only, directory_only = new_id("box"), new_id("box")
    async with backend_on(
        engine_host.host,
        state_dir=tmp_path / "state",
        run_dir=run_dir,
        installation=installation,
    ) as backend:
        body = {
            "Image": BARE_IMAGE,
            "Cmd": ["/none"],
            "Labels": {INSTALLATION: installation, BOX: container_only},
        }
        client.create_container_from_config(body)
        (tmp_path / "state" / "docker" / "boxes" / directory_only).mkdir()
        found = {owned.box_id: owned for owned in await backend.list_owned()}
        assert found.keys() == {container_only, directory_only}
        assert all(owned.ref is None and not owned.alive for owned in found.values())
        for box_id in found:
            await backend.dispose_remains(box_id)
        assert await backend.list_owned() == []


async def test_another_installations_boxes_are_neither_seen_nor_touched(
    engine_host: EngineHost, backend: DockerBackend
) -> None:
    box = await backend.make(order())
    async with backend_on(engine_host.host) as other:
        assert await other.list_owned() == []
        await other.dispose_remains(box.box_id)
    assert await works(backend, box)


async def test_a_network_that_was_not_offered_is_refused(backend: DockerBackend) -> None:
    if "internet" in backend.capabilities().networks:
        pytest.skip("this engine has a bridge")
    with pytest.raises(SandboxdError) as caught:
        await backend.make(order(replace(spec(), network=Network(kind="internet"))))
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
