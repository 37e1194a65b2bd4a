"""Deaths: told once to everybody who watches, and a wish of ours is none."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio


async def end_from_within(backend: Backend, box: BoxRef) -> None:
    """Let the guest come to its hard end."""
    guest = Guest(lambda: backend.connect(box))
    try:
        await guest.claim(Claim(lease_id="lease", life_s=0.05))
    finally:
        await guest.aclose()


async def test_a_death_is_told_once_to_every_watcher(backend: Backend, spec: BoxSpec) -> None:
    with anyio.fail_after(30):
        first, second = await backend.make(order(spec)), await backend.make(order(spec))
        async with backend.watch() as here, backend.watch() as there:
            await end_from_within(backend, first)
            assert (await anext(here)).box_id == first.box_id
            assert (await anext(there)).box_id == first.box_id
            await end_from_within(backend, second)
            # Were the first death told twice, it would come before this one.
            assert (await anext(here)).box_id == second.box_id


async def test_a_look_at_the_dead_says_what_watchers_heard(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        async with backend.watch() as deaths:
            await end_from_within(backend, box)
            told = await anext(deaths)
        assert await backend.look(box) == told
        (owned,) = await backend.list_owned()
        assert not owned.alive
        with pytest.raises(SandboxdError) as caught:
            await backend.connect(box)
    assert caught.value.code is ErrorCode.SANDBOX_LOST


async def test_a_box_disposed_of_is_no_death(backend: Backend, spec: BoxSpec) -> None:
    heard: list[Death] = []
    with anyio.fail_after(30):
        wanted, other = await backend.make(order(spec)), await backend.make(order(spec))
        async with backend.watch() as deaths:
            await backend.dispose(wanted)
            await end_from_within(backend, other)
            heard.append(await anext(deaths))
    assert [death.box_id for death in heard] == [other.box_id]
