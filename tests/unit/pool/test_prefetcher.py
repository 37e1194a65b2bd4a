"""Prefetching: begun once, waited for by many, failing without ending anything."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.fake import open_fake
from sandboxd.backends.protocol import ImageState
from sandboxd.errors import SandboxdError
from sandboxd.pool.prefetcher import Prefetcher
from sandboxd.wire.codes import ErrorCode

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def test_an_image_that_is_coming_comes_once_whoever_gives_up_waiting() -> None:
    async with open_fake() as backend, anyio.create_task_group() as tasks:
        backend.faults.pull_s = 10
        prefetcher = Prefetcher(backend.images, tasks)
        began = anyio.current_time()
        prefetcher.begin(["a"])
        with anyio.move_on_after(4):
            await prefetcher.wait(["a"])
        prefetcher.begin(["a", "a"])
        assert [image.state for image in prefetcher.states(["a"])] == [ImageState.PULLING]
        assert [image.state for image in await prefetcher.list_images()] == [ImageState.PULLING]
        await prefetcher.wait(["a"])
        assert anyio.current_time() - began == pytest.approx(10)
        assert [image.state for image in prefetcher.states(["a"])] == [ImageState.PRESENT]


async def test_a_failure_is_told_and_asking_again_tries_again() -> None:
    async with open_fake() as backend, anyio.create_task_group() as tasks:
        backend.faults.fail_next_pull("the registry says no")
        prefetcher = Prefetcher(backend.images, tasks)
        await _get(prefetcher, "a", "b")
        states = {image.reference: image for image in prefetcher.states(["a", "b"])}
        assert sorted(image.state for image in states.values()) == ["failed", "present"]
        assert "the registry says no" in "".join(image.error for image in states.values())
        await _get(prefetcher, "a", "b")
        assert {image.state for image in prefetcher.states(["a", "b"])} == {ImageState.PRESENT}


async def test_too_many_at_once_are_refused_as_a_whole() -> None:
    async with open_fake() as backend, anyio.create_task_group() as tasks:
        backend.faults.pull_s = 1
        prefetcher = Prefetcher(backend.images, tasks)
        prefetcher.begin([f"image-{number}" for number in range(250)])
        with pytest.raises(SandboxdError) as caught:
            prefetcher.begin([f"more-{number}" for number in range(10)])
        assert caught.value.code is ErrorCode.CAPACITY
        prefetcher.begin(["image-1"])  # which is coming already


async def test_a_backend_without_images_of_its_own_says_so() -> None:
    async with open_fake() as backend, anyio.create_task_group() as tasks:
        backend.images = None
        prefetcher = Prefetcher(backend.images, tasks)
        with pytest.raises(SandboxdError) as caught:
            prefetcher.begin(["a"])
        assert caught.value.code is ErrorCode.NOT_SUPPORTED
        with pytest.raises(SandboxdError) as caught:
            await prefetcher.list_images()
        assert caught.value.code is ErrorCode.NOT_SUPPORTED


async def _get(prefetcher: Prefetcher, *references: str) -> None:
    prefetcher.begin(references)
    await prefetcher.wait(references)
