"""Other engines and runtimes: what works is used, what does not is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.docker import DockerSettings, open_docker
from sandboxd.backends.docker.probing import Surroundings, capabilities_of
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Resources
from sandboxd.wire.codes import ErrorCode
from tests.conftest import EngineHost
from tests.support.podman import missing, podman_engine

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def podman() -> Iterator[tuple[str, str]]:
    if gap := missing():
        pytest.skip(gap)
    with podman_engine() as (engine, image):
        yield engine.host, image


async def test_podman_makes_a_box_runs_a_command_and_leaves_nothing(
    podman: tuple[str, str], tmp_path: Path
) -> None:
    host, image = podman
    settings = DockerSettings(state_dir=tmp_path, installation=new_id("t")[2:14], host=host)
    spec = BoxSpec(image=image, resources=Resources(memory_mb=256, pids=64, disk_mb=256))
    with anyio.fail_after(90):
        async with open_docker(settings) as backend:
            ref = await backend.make(BoxOrder(box_id="box", spec=spec, labels={"pool": "checks"}))
            guest = Guest(lambda: backend.connect(ref))
            script = "id -u; grep Seccomp: /proc/1/status"
            command = Command(exec_id="one", argv=("/bin/sh", "-c", script))
            record = await guest.run(command, wait=True)
            await guest.aclose()
            assert record.stdout.head.split() == [b"0", b"Seccomp:", b"2"], "filtered by a file"
            assert await backend.look(ref) is None
            await backend.dispose(ref)
            assert await backend.list_owned() == []


def test_gvisor_is_none_of_the_runtimes_under_whatever_name() -> None:
    info = {
        "Runtimes": {
            "runc": {"path": "runc"},
            "runsc": {"path": "/usr/bin/runsc"},
            "safe": {"path": "/usr/bin/runsc-wrapper"},
            "kata": {"path": "/usr/bin/kata-runtime"},
        }
    }
    found = capabilities_of(info, Surroundings(internet=False, counts=True))
    assert found.runtimes == {"runc", "kata"}
    assert any("gVisor" in note for note in found.notes)


async def test_a_runtime_that_sandboxes_cannot_have_is_refused(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    settings = DockerSettings(
        state_dir=tmp_path, installation=new_id("t")[2:14], host=engine_host.host
    )
    async with open_docker(settings) as backend:
        order = BoxOrder(
            box_id="box", spec=BoxSpec(image=engine_host.image, runtime="runsc"), labels={}
        )
        with pytest.raises(SandboxdError, match="runtime") as caught:
            await backend.make(order)
        assert caught.value.code is ErrorCode.NOT_SUPPORTED
        assert await backend.list_owned() == []
