"""Removing boxes: everything goes, whatever ran inside, and gone already is success."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio


async def test_a_disposed_box_is_gone_in_every_respect(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        await backend.dispose(box)
    assert await backend.list_owned() == []
    assert await backend.look(box) is not None
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(10):
        await backend.connect(box)
    assert caught.value.code is ErrorCode.SANDBOX_LOST


async def test_disposing_twice_and_at_once_is_success(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(backend.dispose, box)
        await backend.dispose(box)
        await backend.dispose_remains(box.box_id)
    assert await backend.list_owned() == []


async def test_disposing_of_what_never_was_is_success(backend: Backend) -> None:
    with anyio.fail_after(30):
        await backend.dispose(BoxRef(backend=backend.name, box_id=new_id("box")))
        await backend.dispose_remains(new_id("box"))


async def test_a_busy_box_goes_with_all_that_runs_in_it(
    backend: Backend, box: BoxRef, guest: Guest
) -> None:
    sleeper = Command(exec_id="sleeper", argv=("sleep", "600"))
    with anyio.fail_after(30):
        await guest.run(sleeper, wait=False)
        await backend.dispose(box)
    assert await backend.list_owned() == []


async def test_other_boxes_live_on(backend: Backend, box: BoxRef, spec: BoxSpec) -> None:
    with anyio.fail_after(30):
        other = await backend.make(order(spec))
        await backend.dispose(box)
    assert await backend.look(other) is None
    assert [owned.box_id for owned in await backend.list_owned()] == [other.box_id]
