"""An engine on another machine: guests are reached by TCP, and nothing is taken on trust."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.docker import DockerBackend, DockerSettings, open_docker
from sandboxd.backends.docker.engine import open_engine
from sandboxd.backends.protocol import BoxOrder, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.guest.tcp import NotProven, connect_tcp_guest, guest_token
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Network, Resources
from sandboxd.wire.codes import ErrorCode
from tests.support.engine import load_test_image, missing
from tests.support.far_engine import FarEngine, far_engine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

_SECRET = b"the secret of an installation"


@pytest.fixture(scope="module")
def far() -> Iterator[tuple[FarEngine, str]]:
    if gap := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(gap)
    with far_engine() as engine:
        yield engine, load_test_image(engine, name="base")


@pytest.fixture
def settings(far: tuple[FarEngine, str], tmp_path: Path) -> DockerSettings:
    engine, _ = far
    return DockerSettings(
        state_dir=tmp_path, installation=new_id("t")[2:14], host=engine.tcp, secret=_SECRET
    )


@asynccontextmanager
async def one_box(
    settings: DockerSettings, image: str
) -> AsyncIterator[tuple[DockerBackend, BoxRef]]:
    """A backend with one box, which is gone in the end."""
    async with open_docker(settings) as backend:
        with anyio.fail_after(60):
            ref = await backend.make(order(image))
        try:
            yield backend, ref
        finally:
            with anyio.fail_after(30, shield=True):
                await backend.dispose(ref)


def order(image: str) -> BoxOrder:
    spec = BoxSpec(
        image=image,
        network=Network(kind="internet"),
        resources=Resources(memory_mb=256, pids=64, disk_mb=256),
    )
    return BoxOrder(box_id=new_id("box"), spec=spec, labels={"pool": "checks"})


async def run(backend: DockerBackend, ref: BoxRef, script: str) -> str:
    guest = Guest(lambda: backend.connect(ref))
    try:
        with anyio.fail_after(30):
            command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", script))
            return (await guest.run(command, wait=True)).stdout.head.decode()
    finally:
        await guest.aclose()


async def test_the_token_is_nowhere_to_be_seen(
    settings: DockerSettings, far: tuple[FarEngine, str]
) -> None:
    engine, image = far
    async with one_box(settings, image) as (backend, ref):
        token = guest_token(_SECRET, ref.box_id)
        with closing(engine.client()) as api:
            said = str(api.inspect_container(str(ref.details["container"])))
        inside = "cat /proc/1/cmdline; env; cat /run/guest/token; tr '\\0' '\\n' < /proc/1/environ"
        seen = await run(backend, ref, inside)
    for text in (said, seen, str(ref), engine.log.read_text()):
        assert token not in text


async def test_who_has_another_boxs_token_is_let_in_nowhere(
    settings: DockerSettings, far: tuple[FarEngine, str]
) -> None:
    async with one_box(settings, far[1]) as (_, ref):
        host, port = str(ref.details["host"]), int(ref.details["port"])
        with anyio.fail_after(10):
            stream = await connect_tcp_guest(host, port, guest_token(_SECRET, ref.box_id))
            await stream.aclose()
            with pytest.raises(NotProven):
                await connect_tcp_guest(host, port, guest_token(_SECRET, "another"))


async def test_whoever_is_inside_gets_no_answer_from_its_guest(
    settings: DockerSettings, far: tuple[FarEngine, str]
) -> None:
    ask = "exec 3<>/dev/tcp/%s/7031; printf 'sandbox1%%032d' 7 >&3; head -c1 <&3 | wc -c"
    async with one_box(settings, far[1]) as (backend, ref):
        for address in ("127.0.0.1", "$(hostname -i)"):
            script = f'bash -c "{ask % address}"'
            assert (await run(backend, ref, script)).strip() in {"0", ""}


async def test_a_next_daemon_adopts_and_an_engine_out_of_reach_ends_no_box(
    settings: DockerSettings, far: tuple[FarEngine, str]
) -> None:
    engine, image = far
    async with open_docker(settings) as backend:
        ref = await backend.make(order(image))
        await run(backend, ref, "echo kept > /tmp/file")
    async with open_docker(settings) as backend:
        assert await backend.look(ref) is None
        (owned,) = await backend.list_owned()
        assert (owned.ref, owned.alive) == (ref, True)
        await anyio.to_thread.run_sync(engine.cut)
        try:
            with anyio.move_on_after(3) as waited:
                await run(backend, ref, "true")
            assert waited.cancelled_caught
        finally:
            await anyio.to_thread.run_sync(engine.mend)
        assert await eventually(lambda: run(backend, ref, "cat /tmp/file")) == "kept\n"
        assert await backend.look(ref) is None
        await backend.dispose(ref)
        assert await backend.list_owned() == []


async def eventually(call: Callable[[], Awaitable[str]]) -> str:
    """What the call gives once the network is back."""
    with anyio.fail_after(60):
        while True:
            try:
                with anyio.fail_after(5):
                    return await call()
            except (OSError, SandboxdError, TimeoutError):
                await anyio.sleep(0.1)


async def test_no_network_at_all_cannot_be_promised_and_is_refused_with_the_mend(
    settings: DockerSettings, far: tuple[FarEngine, str]
) -> None:
    async with open_docker(settings) as backend:
        spec = replace(order(far[1]).spec, network=Network(kind="none"))
        with pytest.raises(SandboxdError, match="internet") as caught:
            await backend.make(replace(order(far[1]), spec=spec))
        assert caught.value.code is ErrorCode.NOT_SUPPORTED
        assert await backend.list_owned() == []


async def test_an_engine_with_tls_lets_in_who_has_a_key_alone(tmp_path: Path) -> None:
    if gap := missing():
        pytest.skip(gap)
    keys = tmp_path / "keys"

    def keys_for(address: str) -> Path:
        make_keys(keys, address)
        return keys

    opened = far_engine(tls=keys_for)
    engine = await anyio.to_thread.run_sync(opened.__enter__)
    try:
        known = await open_engine(engine.tcp, tls_dir=keys)
        assert (await known.call(known.api.version))["ApiVersion"]
        assert await known.answers()
        await known.aclose()
        with pytest.raises(SandboxdError) as caught:
            await open_engine(engine.tcp)
        assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    finally:
        await anyio.to_thread.run_sync(opened.__exit__, None, None, None)


def make_keys(folder: Path, address: str) -> None:
    """An authority, a server's key for that address and a client's, as engines want them."""
    folder.mkdir()
    (folder / "names").write_text(f"subjectAltName=IP:{address}\n")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=ca")
    for name, prefix, more in (("engine", "server-", ("-extfile", "names")), ("client", "", ())):
        key, asked = f"{prefix}key.pem", f"{prefix}asked.pem"
        openssl("req", *new, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", asked, *signing, "-out", f"{prefix}cert.pem", *more)
