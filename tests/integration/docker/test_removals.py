"""Removals that fail again and again: a box stays on the books, in sight, until it is gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import docker
import pytest
from anyio import to_thread

from sandboxd.errors import SandboxdError
from sandboxd.guest.inside import SHARED_INSIDE
from sandboxd.wire.codes import ErrorCode
from sandboxd_client import Sandboxd
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, load_bare_image, order
from tests.support.docker_service import config_on, docker_service, pools
from tests.support.engine_proxy import Fault, engine_proxy

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def bare_image(engine_host: EngineHost) -> None:
    with closing(docker.APIClient(base_url=engine_host.host, version="1.41")) as client:
        load_bare_image(client)


def shared_with(host: str, container: str) -> Path:
    """The directory of a box that we have too."""
    with closing(docker.APIClient(base_url=host, version="1.41")) as client:
        mounts = client.inspect_container(container)["Mounts"]
    return next(Path(each["Source"]) for each in mounts if each["Destination"] == SHARED_INSIDE)


def was_met(fault: Fault) -> bool:
    return fault.seen > 0


@contextmanager
def busy(place: Path) -> Iterator[None]:
    """Something is mounted there, so that it cannot be removed."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "busy", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.requirement("DK-03")
async def test_a_box_that_cannot_be_removed_shows_as_disposing_until_it_is_gone(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    removal = "^DELETE /.*/containers/"
    async with engine_proxy(engine_host.host) as proxy:
        config = config_on(proxy.host, engine_host.image, pool="ready = 0, max = 1")

        def use() -> None:
            with (
                docker_service(tmp_path, engine_host.host, config) as (daemon, containers),
                Sandboxd(url=daemon.url) as client,
            ):
                sandbox = client.lease("python", wait_timeout_s=30)
                (box_id,) = containers.box_ids()
                for words in ("device or resource busy", "driver failed to remove root"):
                    proxy.fail(Fault(removal, 500, words, times=2))
                last = proxy.fail(Fault(removal, 409, "removal is already in progress"))
                sandbox.release()
                while not was_met(last):
                    shown = pools(daemon)["python"]["disposing"], containers.box_ids()
                    assert was_met(last) or shown == (1, {box_id})
                assert daemon.log.read_text().count("dispose.failed") == 4
                # There is room for one: who gets it does so after the last trace is gone.
                with client.lease("python", wait_timeout_s=30):
                    assert box_id not in containers.box_ids()

        await to_thread.run_sync(use)


@pytest.mark.requirement("DK-03")
async def test_a_place_that_is_kept_busy_is_tried_again_until_it_is_free(
    engine_host: EngineHost,
) -> None:
    async with backend_on(engine_host.host) as backend:
        box = await backend.make(order())
        with busy(shared_with(engine_host.host, str(box.details["container"])) / "held"):
            with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
                await backend.dispose(box)
            assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
            assert [owned.box_id for owned in await backend.list_owned()] == [box.box_id]
        await backend.dispose(box)
        assert await backend.list_owned() == []


@pytest.mark.requirement("DK-03")
async def test_an_engine_that_never_answers_a_removal_is_asked_again(
    engine_host: EngineHost,
) -> None:
    async with engine_proxy(engine_host.host) as proxy, backend_on(proxy.host) as backend:
        box = await backend.make(order())
        proxy.fail(Fault("^DELETE /.*/containers/", hang=True))
        with anyio.move_on_after(1):
            await backend.dispose(box)
        assert [owned.box_id for owned in await backend.list_owned()] == [box.box_id]
        with anyio.fail_after(30):
            await backend.dispose(box)
        assert await backend.list_owned() == []
