"""What goes when images take more than they may, and what never does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from sandboxd.backends.docker.engine import Engine
from sandboxd.backends.protocol import Wanted
from tests.integration.docker.images.steps import images_of
from tests.support.registry import (
    Registry,
)

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]


async def test_over_its_budget_the_longest_unused_goes(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "old", "middle", "new")
    async with images_of(engine, tmp_path, disk_mb=2) as images:
        ids = [(await images.ensure(name, pull="missing")).image_id for name in names[:2]]
        await images.ensure(names[0], pull="missing")  # used again: now `middle` is the oldest
        ids.append((await images.ensure(names[2], pull="missing")).image_id)
        await images.tidy()
        assert await _here(engine, ids) == [True, False, True]
        states = {image.reference: image.state for image in await images.list_images()}
        assert set(states) == {f"{names[0]}:latest", f"{names[2]}:latest"}


async def test_what_is_used_or_wanted_or_somebody_elses_never_goes(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "contained", "making", "stocked", "tagged", "before", "spare")
    await to_thread.run_sync(engine.api.pull, names[4])
    async with images_of(engine, tmp_path, disk_mb=1) as images:
        images.wanted_by(lambda: {names[2]: Wanted(stocked=True), names[5]: Wanted()})
        async with anyio.create_task_group() as tasks, _container(engine) as contain:
            ids = []
            for name in names:
                done = anyio.Event()

                async def use(name: str = name, done: anyio.Event = done) -> None:
                    async with images.using(name, pull="missing") as facts:
                        ids.append(facts.image_id)
                        done.set()
                        await anyio.sleep_forever()

                tasks.start_soon(use)
                await done.wait()
            await contain(ids[0])
            await to_thread.run_sync(engine.api.tag, ids[3], "127.0.0.1:9/theirs", "latest")
            assert await images.tidy() == []
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                async with images.using(names[1], pull="never"):
                    assert await images.tidy() == [ids[5]]
                assert await _here(engine, ids) == [True] * 5 + [False]


async def test_what_we_pulled_is_known_after_a_restart_and_a_lost_ledger_drops_nothing(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "old", "new")
    async with images_of(engine, tmp_path) as images:
        ids = [(await images.ensure(name, pull="missing")).image_id for name in names]
    ledger = tmp_path / "docker" / "images.json"
    kept = ledger.read_text()
    for broken in ("", "{}", "[]", '{"version": 1, "images": [{}]}', kept[:-9]):
        ledger.write_text(broken)
        async with images_of(engine, tmp_path, disk_mb=1) as images:
            await images.tidy()
        assert await _here(engine, ids) == [True, True]
    ledger.write_text(kept)
    async with images_of(engine, tmp_path, disk_mb=1) as images:
        await images.tidy()
        assert await _here(engine, ids) == [False, True]


async def _push_some(shop: Registry, *names: str) -> list[str]:
    """Push images of a bit over 0.9 MiB; their references."""
    for name in names:
        await shop.push(name, files={"data": os.urandom(900_000)})
    return [f"{shop.address}/{name}" for name in names]


async def _here(engine: Engine, ids: list[str]) -> list[bool]:
    listed = await engine.call(engine.api.images, all=True)
    present = {image["Id"] for image in listed}
    return [image_id in present for image_id in ids]


@asynccontextmanager
async def _container(engine: Engine) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Containers of somebody else, never started."""
    made: list[str] = []

    async def contain(image_id: str) -> None:
        made.append((await engine.call(engine.api.create_container, image_id, "/x"))["Id"])

    try:
        yield contain
    finally:
        with anyio.CancelScope(shield=True):
            for container in made:
                await engine.call(engine.api.remove_container, container, force=True)
