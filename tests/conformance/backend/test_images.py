"""What a maker says of the images that it keeps itself."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef, Image, Images, ImageState, Wanted
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode, Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def images(backend: Backend) -> Images:
    """The maker's images."""
    if backend.images is None:
        pytest.skip(f"{backend.name} keeps no images of its own")
    return backend.images


async def used(images: Images) -> list[Image]:
    """Those that boxes are made of."""
    return [image for image in await images.list_images() if image.in_use]


async def test_what_a_box_is_made_of_is_listed_while_it_exists(
    backend: Backend, images: Images, box: BoxRef
) -> None:
    with anyio.fail_after(30):
        (image,) = await used(images)
        assert (image.state, image.in_use) == (ImageState.PRESENT, 1)
        assert image.used_at is not None
        await backend.dispose(box)
        assert await used(images) == []


async def test_prefetching_what_is_here_is_success_under_the_name_that_was_asked_for(
    images: Images, spec: BoxSpec
) -> None:
    with anyio.fail_after(30):
        image = await images.prefetch(spec.image)
    assert (image.reference, image.state) == (spec.image, ImageState.PRESENT)
    assert (image.used_at, image.in_use) == (None, 0)


async def test_what_templates_name_is_listed_before_its_first_box(
    images: Images, spec: BoxSpec
) -> None:
    wanted = Wanted(stocked=True, pods=frozenset({spec.pod}))
    images.wanted_by(lambda: {spec.image: wanted})
    with anyio.fail_after(30):
        await images.prefetch(spec.image)
        listed = await images.list_images()
    assert [(image.state, image.in_use) for image in listed] == [(ImageState.PRESENT, 0)]


async def test_what_cannot_be_had_is_image_unavailable_by_the_tasks_fault(
    backend: Backend, images: Images
) -> None:
    if backend.capabilities().programs == "scripted":
        pytest.skip("the fake takes any name")
    with anyio.fail_after(30), pytest.raises(SandboxdError) as caught:
        await images.prefetch("/no/such/Image")
    assert caught.value.code is ErrorCode.IMAGE_UNAVAILABLE
    assert caught.value.fault is Fault.TASK
