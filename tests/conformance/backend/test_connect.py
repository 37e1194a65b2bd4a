"""Lines to the guest: as many as one likes, each of its own."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.guest import Guest

pytestmark = pytest.mark.anyio


async def test_many_lines_at_once_reach_the_same_guest(backend: Backend, box: BoxRef) -> None:
    boots: set[str] = set()

    async def ask() -> None:
        guest = Guest(lambda: backend.connect(box))
        try:
            boots.add((await guest.hello()).boot_id)
        finally:
            await guest.aclose()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(ask)
    assert len(boots) == 1


async def test_a_line_that_is_dropped_unused_harms_nobody(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        for _ in range(20):
            await anyio.aclose_forcefully(await backend.connect(box))
        guest = Guest(lambda: backend.connect(box))
        try:
            assert (await guest.hello()).boot_id
        finally:
            await guest.aclose()
    assert await backend.look(box) is None
