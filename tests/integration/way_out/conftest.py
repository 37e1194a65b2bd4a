"""The way out over each backend whose boxes have one: local, and docker where it can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd.backends.protocol import Backend
from tests.conformance.conftest import MATRIX, Maker, open_docker_backend
from tests.conftest import EngineHost, Loop
from tests.support.ways import World, machine_address, open_world


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def maker(request: pytest.FixtureRequest) -> Maker:
    if machine_address() is None:
        pytest.skip("this machine has no address but its loopback")
    chosen = MATRIX[request.param]
    if request.param == "docker":
        engine: EngineHost = request.getfixturevalue("engine_host")
        return Maker(open=lambda place: open_docker_backend(place, engine), image=engine.image)
    if reason := chosen.missing():
        pytest.skip(reason)
    return chosen


@pytest.fixture
def anyio_backend(maker: Maker) -> Loop:
    return maker.loop()


@pytest.fixture
async def backend(maker: Maker, tmp_path: Path) -> AsyncIterator[Backend]:
    async with maker.open(tmp_path) as opened:
        if not opened.capabilities().way_out:
            pytest.skip("boxes here have no way out")
        yield opened


@pytest.fixture
async def world(backend: Backend, maker: Maker) -> AsyncIterator[World]:
    async with open_world(backend, image=maker.image) as opened:
        yield opened
