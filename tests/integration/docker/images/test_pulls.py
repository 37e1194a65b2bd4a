"""Pulls that many wait for, that stall, that are cut short, and registries that want fewer."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import pytest
from anyio import to_thread
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from sandboxd.backends.docker.engine import Engine, open_engine
from sandboxd.backends.docker.imaging import DockerImages
from sandboxd.backends.protocol import ImageState
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault
from tests.conftest import EngineHost
from tests.integration.docker.images.steps import MIB, images_of, refused, until
from tests.support.daemon import run_daemon
from tests.support.engine import engine as engine_of_our_own
from tests.support.registry import (
    Fault as Wrong,
)
from tests.support.registry import (
    Front,
    Registry,
)

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]


async def test_many_who_want_an_image_get_one_pull_that_outlives_who_gave_up(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("wanted", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(stall_after=1000) if "/blobs/" in path else None
    got: list[str] = []
    async with images_of(engine, tmp_path) as images:

        async def want() -> None:
            facts = await images.ensure(f"{front.address}/wanted", pull="missing")
            got.append(facts.image_id)

        async with anyio.create_task_group() as patient, anyio.create_task_group() as impatient:
            impatient.start_soon(want)
            await until(lambda: front.count("/blobs/") > 0)
            for _ in range(30):
                patient.start_soon(want)
            listed = await images.list_images()
            assert [image.state for image in listed] == [ImageState.PULLING]
            impatient.cancel_scope.cancel()
            front.rule = lambda _method, _path: None
            front.release.set()
    assert len(got) == 30
    assert len(set(got)) == 1
    assert front.count("GET /v2/wanted/manifests/") <= 2  # by tag and by digest, for one pull


async def test_an_image_that_came_is_told_of_once_and_one_that_is_here_is_not(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    name = f"{shop.address}/told"
    await shop.push("told", files={"data": os.urandom(1000)})
    told: list[str] = []
    async with images_of(engine, tmp_path) as images:
        images.when_pulled(told.append)
        for pull in ("missing", "missing", "always"):
            await images.ensure(name, pull=pull)
    assert [image.removesuffix(":latest") for image in told] == [name]


async def test_a_registry_is_asked_for_two_images_at_once(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    names = [f"one-{number}" for number in range(5)]
    for name in names:
        await shop.push(name)
    front.rule = lambda _, path: Wrong(stall_after=0) if "/blobs/" in path else None

    def begun() -> int:
        return sum(front.count(f"/v2/{name}/manifests/") > 0 for name in names)

    async with images_of(engine, tmp_path) as images, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(images.prefetch, f"{front.address}/{name}")
        await until(lambda: begun() == 2)
        assert [image.state for image in await images.list_images()] == [ImageState.PULLING] * 5
        assert begun() == 2
        front.release.set()
        front.rule = lambda _method, _path: None
    assert begun() == 5


async def test_a_registry_that_wants_fewer_requests_is_asked_again_later(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("popular")
    busy = Wrong(
        status=429,
        headers=("Retry-After: 1",),
        body=b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "Retry-After: 1"}]}',
    )
    asked = 0

    def rule(_method: str, path: str) -> Wrong | None:
        nonlocal asked
        asked += "/manifests/" in path
        return busy if "/manifests/" in path and asked <= 4 else None

    front.rule = rule
    said: set[str] = set()

    async def listen(images: DockerImages) -> None:
        while True:
            said.update(image.progress for image in await images.list_images())
            await anyio.sleep(0.05)

    async with images_of(engine, tmp_path) as images, anyio.create_task_group() as tasks:
        tasks.start_soon(listen, images)
        with anyio.fail_after(30):
            await images.ensure(f"{front.address}/popular", pull="missing")
        tasks.cancel_scope.cancel()
    assert asked > 4
    assert any("asked for fewer requests: again in" in progress for progress in said)


async def test_a_pull_without_progress_is_given_up_and_the_engine_lets_go(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("slow", files={"data": os.urandom(3 * MIB)})
    front.rule = lambda _, path: Wrong(stall_after=MIB) if "/blobs/" in path else None
    async with images_of(engine, tmp_path, stall_s=1) as images:
        error = await refused(images, f"{front.address}/slow")
        assert (error.fault, error.details["cause"]) == (Fault.INFRA, "stalled")
        (listed,) = await images.list_images()
        assert (listed.state, listed.error) == (ImageState.FAILED, error.detail)


async def test_a_daemon_that_is_told_to_stop_does_not_wait_for_a_silent_registry(
    engine_host: EngineHost, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("silent")
    front.rule = lambda _, path: Wrong(stall_after=0) if "/manifests/" in path else None
    config = f"""
        [backend.docker]
        host = "{engine_host.host}"
        [templates.silent]
        image = "{front.address}/silent"
    """

    def use() -> None:
        # Leaving ends it, and wants it gone within 10 s.
        with run_daemon(tmp_path, backend="docker", config=config) as daemon:
            body = {"images": [f"{front.address}/silent"]}
            answer = httpx.post(f"{daemon.url}/v1/images/prefetch?wait_s=0.5", json=body)
            assert answer.status_code == 202
            assert answer.json()["images"][0]["state"] == "pulling"

    await to_thread.run_sync(use)
    assert front.count("/manifests/") > 0


async def test_an_engine_that_is_reached_by_tcp_pulls_too(
    engine_host: EngineHost, shop: Registry, tmp_path: Path
) -> None:
    await shop.push("small")

    async def serve(near: SocketStream) -> None:
        far = await anyio.connect_unix(engine_host.host.removeprefix("unix://"))
        async with near, far, anyio.create_task_group() as ways:
            ways.start_soon(_pour, near, far)
            ways.start_soon(_pour, far, near)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - no query
        reached = await open_engine(f"tcp://127.0.0.1:{port}")
        async with images_of(reached, tmp_path) as images:
            await images.ensure(f"{shop.address}/small", pull="missing")
        await reached.aclose()
        tasks.cancel_scope.cancel()


async def _pour(source: ByteStream, target: ByteStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await target.send(await source.receive())
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await target.send_eof()


async def test_an_engine_that_dies_under_a_pull_is_told_at_once_and_the_next_pull_works(
    shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("slow", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(stall_after=1000) if "/blobs/" in path else None
    with engine_of_our_own() as own:
        opened = await open_engine(own.host)
        async with images_of(opened, tmp_path) as images:
            killed = anyio.Event()

            async def kill() -> None:
                await until(lambda: front.count("/blobs/") > 0)
                await to_thread.run_sync(own.kill)
                killed.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill)
                error = await refused(images, f"{front.address}/slow")
                assert error.code is ErrorCode.BACKEND_UNAVAILABLE
                await killed.wait()
            front.rule = lambda _method, _path: None
            await to_thread.run_sync(own.start)
            with anyio.fail_after(30):
                await images.ensure(f"{front.address}/slow", pull="missing")
        await opened.aclose()


async def test_leaving_ends_a_pull_that_is_under_way_and_tells_who_waits(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("slow", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(stall_after=1000) if "/blobs/" in path else None
    told: list[SandboxdError] = []
    with anyio.fail_after(10):
        # The task that waits outlives the images.
        async with anyio.create_task_group() as tasks:  # noqa: SIM117
            async with images_of(engine, tmp_path) as images:

                async def wait() -> None:
                    with pytest.raises(SandboxdError) as caught:
                        await images.ensure(f"{front.address}/slow", pull="missing")
                    told.append(caught.value)

                tasks.start_soon(wait)
                await until(lambda: front.count("/blobs/") > 0)
    assert [error.code for error in told] == [ErrorCode.BACKEND_UNAVAILABLE]
