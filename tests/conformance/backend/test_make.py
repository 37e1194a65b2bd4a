"""Making boxes: what comes of it, and what is refused before anything is made."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.template import BoxSpec, Network
from sandboxd.wire.codes import ErrorCode, Fault
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio


async def boot_id_of(backend: Backend, box: BoxRef) -> str:
    guest = Guest(lambda: backend.connect(box))
    try:
        with anyio.fail_after(10):
            return (await guest.hello()).boot_id
    finally:
        await guest.aclose()


async def test_a_made_box_answers_at_once(backend: Backend, box: BoxRef) -> None:
    assert await boot_id_of(backend, box)
    assert await backend.look(box) is None


async def test_boxes_made_at_once_are_boxes_of_their_own(backend: Backend, spec: BoxSpec) -> None:
    boxes: list[BoxRef] = []

    async def make() -> None:
        boxes.append(await backend.make(order(spec)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(make)
    assert len({await boot_id_of(backend, box) for box in boxes}) == 8


async def test_a_second_box_of_the_same_id_is_a_conflict_and_harms_nothing(
    backend: Backend, spec: BoxSpec
) -> None:
    wanted = order(spec)
    with anyio.fail_after(30):
        box = await backend.make(wanted)
        with pytest.raises(SandboxdError) as caught:
            await backend.make(wanted)
    assert caught.value.code is ErrorCode.CONFLICT
    assert await boot_id_of(backend, box)


async def test_an_unknown_image_is_the_tasks_fault_and_leaves_nothing(
    backend: Backend, spec: BoxSpec
) -> None:
    if backend.capabilities().images == "any name":
        pytest.skip(f"{backend.name} takes any image")
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
        await backend.make(order(replace(spec, image="/no/such/image")))
    assert (caught.value.code, caught.value.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
    assert await backend.list_owned() == []


async def test_a_network_that_it_has_not_is_refused(backend: Backend, spec: BoxSpec) -> None:
    for network in (Network(kind="none"), Network(kind="internet"), Network(kind="allow")):
        if network.kind not in backend.capabilities().networks:
            await refuses(backend, replace(spec, network=network))


async def test_a_runtime_and_a_gpu_that_it_has_not_are_refused(
    backend: Backend, spec: BoxSpec
) -> None:
    await refuses(backend, replace(spec, runtime="no-such-runtime"))
    if not backend.capabilities().gpu:
        await refuses(backend, replace(spec, resources=replace(spec.resources, gpu=1)))


async def refuses(backend: Backend, spec: BoxSpec) -> None:
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
        await backend.make(order(spec))
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert await backend.list_owned() == []
