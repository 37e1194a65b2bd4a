"""An engine that stops, is killed or starts anew takes its boxes along, or not: both are named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from anyio import to_thread

from sandboxd.backends.docker import DockerBackend
from sandboxd.backends.protocol import BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.support.docker_boxes import backend_on, load_bare_image, order, works
from tests.support.engine import TestEngine, engine, missing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

BOXES = 3


@pytest.fixture
def plain() -> Iterator[TestEngine]:
    """An engine that ends its containers with itself."""
    with engine() as started:
        load(started)
        yield started


@pytest.fixture
def keeping() -> Iterator[TestEngine]:
    """An engine whose containers outlive it."""
    with engine(live_restore=True) as started:
        load(started)
        yield started


def load(started: TestEngine) -> None:
    client = started.client()
    try:
        load_bare_image(client)
    finally:
        client.close()


async def make(backend: DockerBackend, count: int = BOXES) -> list[BoxRef]:
    return [await backend.make(order()) for _ in range(count)]


async def hear(deaths: AsyncIterator[Death], boxes: list[BoxRef]) -> list[Death]:
    """One death of each box."""
    heard = [await anext(deaths) for _ in boxes]
    assert {death.box_id for death in heard} == {box.box_id for box in boxes}
    return heard


def assert_lost_with_the_engine(deaths: list[Death]) -> None:
    for death in deaths:
        assert (death.reason, death.fault) == (EndReason.NODE_LOST, Fault.INFRA), death
        assert death.mask
        assert "engine" in death.detail


async def test_boxes_end_with_an_engine_that_is_stopped(plain: TestEngine) -> None:
    async with backend_on(plain.host) as backend:
        with anyio.fail_after(60):
            boxes = await make(backend)
            async with backend.watch() as deaths:
                await to_thread.run_sync(plain.stop)
                assert_lost_with_the_engine(await hear(deaths, boxes))
            with pytest.raises(SandboxdError) as caught:
                await backend.make(order())
            assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
            await to_thread.run_sync(plain.start)
            assert await works(backend, await backend.make(order()))


async def test_boxes_outlive_an_engine_that_is_killed_until_it_starts(plain: TestEngine) -> None:
    async with backend_on(plain.host) as backend:
        with anyio.fail_after(60):
            boxes = await make(backend)
            async with backend.watch() as deaths:
                await to_thread.run_sync(plain.kill)
                for box in boxes:
                    assert await backend.look(box) is None
                    assert await works(backend, box)
                await to_thread.run_sync(plain.start)
                assert_lost_with_the_engine(await hear(deaths, boxes))
            assert await works(backend, await backend.make(order()))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_boxes_outlive_an_engine_that_restores_them(keeping: TestEngine, how: str) -> None:
    async with backend_on(keeping.host) as backend:
        with anyio.fail_after(60):
            boxes = await make(backend)
            await to_thread.run_sync(getattr(keeping, how))
            for box in boxes:
                assert await works(backend, box)
            await to_thread.run_sync(keeping.start)
            for box in boxes:
                assert await backend.look(box) is None
                assert await works(backend, box)
            # And what becomes of them is heard again, at once or as soon as the events flow: until
            # then a death may have come with the engine's end.
            faults = []
            async with backend.watch() as deaths:
                client = keeping.client()
                for box in boxes:
                    await to_thread.run_sync(client.kill, str(box.details["container"]))
                    death = await anext(deaths)
                    assert death.box_id == box.box_id
                    faults.append(death.fault)
                client.close()
            assert faults[-1] is Fault.UNKNOWN
            assert set(faults) <= {Fault.UNKNOWN, Fault.INFRA}
            for box in boxes:
                await backend.dispose(box)


async def test_a_box_without_its_engine_cannot_be_removed_and_stays_on_the_books(
    plain: TestEngine,
) -> None:
    async with backend_on(plain.host) as backend:
        with anyio.fail_after(60):
            (box,) = await make(backend, 1)
            await to_thread.run_sync(plain.kill)
            for act in (backend.dispose(box), backend.list_owned()):
                with pytest.raises(SandboxdError) as caught:
                    await act
                assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
            await to_thread.run_sync(plain.start)
            assert [owned.box_id for owned in await backend.list_owned()] == [box.box_id]
            await backend.dispose(box)
            assert await backend.list_owned() == []
