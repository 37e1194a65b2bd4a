"""Images that say odd things of themselves: they work, or the blame is where it belongs."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import anyio
import docker
import pytest

from sandboxd.backends.docker import DockerBackend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Resources
from sandboxd.wire.codes import ErrorCode, Fault
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, order

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]

Derive = Callable[..., BoxSpec]


@pytest.fixture
def derive(engine_host: EngineHost) -> Iterator[Derive]:
    """Makes images of the test image by lines of a Dockerfile; they are gone in the end."""
    with closing(docker.APIClient(base_url=engine_host.host, version="1.41")) as client:
        made: list[str] = []

        def build(*lines: str) -> BoxSpec:
            name = f"sandboxd-strange-{new_id('t')[2:14]}:1"
            text = "\n".join([f"FROM {engine_host.image}", *lines]).encode()
            context = io.BytesIO()
            with tarfile.open(fileobj=context, mode="w") as tar:
                member = tarfile.TarInfo("Dockerfile")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
            context.seek(0)
            told = client.build(
                fileobj=context,
                custom_context=True,
                tag=name,
                network_mode="none",
                rm=True,
                decode=True,
            )
            errors = [json.dumps(line) for line in told if "error" in line]
            assert errors == []
            made.append(name)
            return BoxSpec(image=name, resources=Resources(memory_mb=128, pids=64))

        yield build
        for name in made:
            with suppress(docker.errors.ImageNotFound):
                client.remove_image(name, force=True)


async def said_in(backend: DockerBackend, spec: BoxSpec, script: str) -> str:
    """What a box of it answers, claimed as a lease does."""
    with anyio.fail_after(30):
        box = await backend.make(order(spec))
        guest = Guest(lambda: backend.connect(box))
        try:
            await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=60))
            command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", script))
            return (await guest.run(command, wait=True)).stdout.head.decode()
        finally:
            await guest.aclose()
            await backend.dispose(box)


async def refused(backend: DockerBackend, spec: BoxSpec) -> SandboxdError:
    with anyio.fail_after(30), pytest.raises(SandboxdError) as caught:
        await backend.make(order(spec))
    assert await backend.list_owned() == []
    return caught.value


@pytest.mark.parametrize(
    ("lines", "script", "said"),
    [
        (["ENTRYPOINT false", "HEALTHCHECK CMD false", "STOPSIGNAL USR1"], "echo $$", ""),
        (["VOLUME /run/guest", "EXPOSE 80"], "echo fine", "fine"),
        (["RUN rm -rf /run /tmp && ln -s /etc /run"], "echo fine", "fine"),
        (["RUN rm /etc/passwd /etc/group"], "id -u", "0"),
        (["USER nobody:tty"], "id -un; id -gn", "nobody\ntty"),
        (["ENV GOMAXPROCS=999 GOGC=off"], "echo $GOMAXPROCS $GOGC", "999 off"),
        (["ENV GOMEMLIMIT=lots GODEBUG=x"], "echo $GOMEMLIMIT $GODEBUG", "lots x"),
    ],
    ids=["programs", "our place", "no run", "no users", "user", "threads", "runtime"],
)
async def test_what_an_image_says_of_itself_stops_no_guest(
    engine_host: EngineHost, derive: Derive, lines: list[str], script: str, said: str
) -> None:
    spec = derive(*lines)
    async with backend_on(engine_host.host) as backend:
        assert said in await said_in(backend, spec, script)


async def test_the_volumes_that_an_image_asks_for_go_with_the_box(
    engine_host: EngineHost, derive: Derive
) -> None:
    spec = derive("VOLUME /data /workspace /tmp /run /dev/shm")
    async with backend_on(engine_host.host) as backend:
        with (
            anyio.fail_after(30),
            closing(docker.APIClient(base_url=engine_host.host, version="1.41")) as client,
        ):
            box = await backend.make(order(spec))
            mounts = client.inspect_container(str(box.details["container"]))["Mounts"]
            volumes = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
            assert len(volumes) >= 4
            await backend.dispose(box)
            left = {volume["Name"] for volume in client.volumes()["Volumes"] or []}
            assert volumes & left == set()


async def test_an_image_whose_own_user_is_not_in_it_is_the_tasks_fault(
    engine_host: EngineHost, derive: Derive
) -> None:
    spec = derive("USER no-such-user")
    async with backend_on(engine_host.host) as backend:
        error = await refused(backend, spec)
    assert (error.code, error.fault, error.mask) == (ErrorCode.START_FAILED, Fault.TASK, True)
    assert spec.image in error.detail
    assert "the image's own user cannot be found in it" in error.detail


@pytest.mark.parametrize("place", ["/run", "/run/guest"])
async def test_an_image_with_a_file_where_the_guest_belongs_is_the_tasks_fault(
    engine_host: EngineHost, derive: Derive, place: str
) -> None:
    spec = derive(f"RUN rm -rf {place} && touch {place}")
    async with backend_on(engine_host.host) as backend:
        error = await refused(backend, spec)
    assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.TASK)
    assert "no room for what is mounted into it" in error.detail
