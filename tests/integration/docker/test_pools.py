"""Warm pools on a real engine: a burst, an image that fails beside one that works, stock that went
out of date."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from sandboxd_client import AsyncSandboxd
from tests.conftest import EngineHost
from tests.support.docker_service import Containers, config_on, docker_service, pools
from tests.support.engine import missing
from tests.support.service import Service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.serial,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

STARTING = 2
_LOOK_S = 0.05
MIB = 1 << 20


async def until(check: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + within_s
    while not await to_thread.run_sync(check):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await anyio.sleep(_LOOK_S)


class Watch:
    """What was the most at once, as the engine and the daemon say."""

    def __init__(self, daemon: Service, containers: Containers) -> None:
        self._daemon = daemon
        self._containers = containers
        self.looks = self.most_created = self.most_making = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            created = await to_thread.run_sync(lambda: self._containers.all(status="created"))
            pool = (await to_thread.run_sync(pools, self._daemon))["python"]
            self.looks += 1
            self.most_created = max(self.most_created, len(created))
            self.most_making = max(self.most_making, int(pool["making"]))
            await anyio.sleep(_LOOK_S)


@asynccontextmanager
async def watched(daemon: Service, containers: Containers) -> AsyncIterator[Watch]:
    watch = Watch(daemon, containers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run, name="watch")
        yield watch
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "count",
    [24, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(580)])],
)
async def test_a_cold_burst_is_served_whole_and_only_so_many_start_at_once(
    tmp_path: Path, engine_host: EngineHost, count: int
) -> None:
    config = config_on(
        engine_host.host,
        engine_host.image,
        backend=f"starting = {STARTING}",
        pool="ready = 0, max = 40, starting = 4",
    )
    done: list[str] = []

    async def roll_out(client: AsyncSandboxd) -> None:
        async with client.lease("python", wait_timeout_s=120) as sandbox:
            result = await sandbox.exec("echo here")
            assert (result.exit_code, result.stdout) == (0, "here\n")
            done.append(sandbox.id)

    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):
        async with (
            watched(daemon, containers) as watch,
            AsyncSandboxd(url=daemon.url) as client,
            anyio.create_task_group() as tasks,
        ):
            for number in range(count):
                tasks.start_soon(roll_out, client, name=f"rollout {number}")
        assert len(set(done)) == count
        assert watch.looks > count / 10
        assert watch.most_created <= STARTING
        assert watch.most_making <= 4
        await until(lambda: containers.all() == [], within_s=30, what="all boxes are gone")


@pytest.mark.requirement("DK-05")
async def test_an_image_that_fails_is_told_and_rests_while_another_pool_is_full(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    broken = """
[templates.broken]
image = "sandboxd/there-is-no-such-image:1"
pull = "never"
pool = {ready = 2, max = 4}
"""
    config = config_on(
        engine_host.host, engine_host.image, templates=broken, pool="ready = 2, max = 4"
    )
    with docker_service(tmp_path, engine_host.host, config) as (daemon, _):
        await until(
            lambda: pools(daemon)["python"]["ready"] == 2, within_s=30, what="the good pool is full"
        )
        await until(
            lambda: daemon.log.read_text().count("make.failed") >= 4,
            within_s=30,
            what="two makes failed, and failed again",
        )
        found = pools(daemon)
        assert "there-is-no-such-image" in found["broken"]["last_error"]
        assert (found["broken"]["ready"], found["python"]["last_error"]) == (0, None)
        # Twice two makes; the third two follow after a pause of some seconds.
        assert daemon.log.read_text().count("make.failed") <= 4
        async with (
            AsyncSandboxd(url=daemon.url) as client,
            client.lease("python") as sandbox,
        ):
            assert (await sandbox.exec("echo fine")).stdout == "fine\n"


async def test_stock_of_a_changed_template_is_replaced_and_leases_live_on(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 2, max = 8")
    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):
        await until(lambda: pools(daemon)["python"]["ready"] == 2, within_s=30, what="stock")
        async with AsyncSandboxd(url=daemon.url) as client, client.lease("python") as sandbox:
            await until(lambda: pools(daemon)["python"]["ready"] == 2, within_s=30, what="stock")
            before = containers.box_ids()
            daemon.rewrite(config.replace("memory_mb = 128", "memory_mb = 192"))

            def replaced() -> bool:
                after = containers.box_ids()
                return len(after) == 3 and len(after & before) == 1

            await until(replaced, within_s=30, what="two new boxes beside the leased one")
            await until(lambda: pools(daemon)["python"]["ready"] == 2, within_s=30, what="stock")
            limits = [
                containers.facts(box_id)["HostConfig"]["Memory"]
                for box_id in containers.box_ids() - before
            ]
            assert limits == [192 * MIB, 192 * MIB]
            assert (await sandbox.exec("echo still here")).stdout == "still here\n"
