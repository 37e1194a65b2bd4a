"""A real registry for each test, a front of it, and an engine that is left as it was found."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, open_engine
from tests.conftest import EngineHost
from tests.support.registry import (
    Front,
    Registry,
    front_of,
    missing,
    registry,
)


@pytest.fixture
async def engine(engine_host: EngineHost) -> AsyncIterator[Engine]:
    """The tests' engine, from which every image of a loopback registry is taken away again."""
    opened = await open_engine(engine_host.host)
    try:
        yield opened
    finally:
        await to_thread.run_sync(_clear, opened)
        await opened.aclose()


@pytest.fixture(autouse=True)
def registry_is_here() -> None:
    """Where none is installed the tests are skipped, but never in CI."""
    if gap := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(gap)
        pytest.skip(gap)


def _clear(engine: Engine) -> None:
    for container in engine.api.containers(all=True):
        if container["Image"].startswith("127.0.0.1:"):
            engine.api.remove_container(container["Id"], force=True)
    for image in engine.api.images(all=True):
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        if any(name.startswith("127.0.0.1:") for name in names):
            engine.api.remove_image(image["Id"], force=True)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Registry]:
    """A registry that anybody may read."""
    (tmp_path / "shop").mkdir()
    async with registry(tmp_path / "shop") as running:
        yield running


@pytest.fixture
async def front(shop: Registry) -> AsyncIterator[Front]:
    """A front of it, in which things go wrong."""
    async with front_of(shop) as running:
        yield running
