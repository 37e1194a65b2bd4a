"""A caller that goes away at any moment, to the single step of any task, leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from trio.abc import Instrument

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import LeaseState
from sandboxd.model.template import Resources
from tests.faults.conftest import BadWorld, open_bad_world
from tests.faults.quiet import agree, calm, living
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, Front, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

MOST_STEPS = 400


class After(Instrument):
    """Cancels a scope after so many steps of whatever tasks there are."""

    def __init__(self, steps: int, scope: anyio.CancelScope) -> None:
        self.left = steps
        self.scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


async def cut(steps: int, act: Callable[[], Awaitable[Any]]) -> bool:
    """Do something, cancelled after so many steps. True: it came to its own end before that."""
    with anyio.CancelScope() as scope:
        instrument = After(steps, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            await act()
            return True
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return False


Prepare = Callable[[BadWorld, Front], Awaitable[None]]


async def nothing(world: BadWorld, front: Front) -> None:
    await front.full()


async def dead_stock(world: BadWorld, front: Front) -> None:
    await front.full()
    for box_id in await front.box_ids():
        world.sabotage.vanish(box_id)


async def a_slow_store(world: BadWorld, front: Front) -> None:
    await front.full()
    world.bad_store.slow_s = 0.5


async def a_full_store(world: BadWorld, front: Front) -> None:
    await front.full()
    world.bad_store.script.append(Mishap.FAIL)


SITUATIONS: dict[str, tuple[int, Prepare, dict[str, Any]]] = {
    "warm": (2, nothing, {}),
    "from the queue": (0, nothing, {}),
    "cold": (1, nothing, {"resources": Resources(memory_mb=64)}),
    "not waiting": (0, nothing, {"wait": False}),
    "warm, not waiting": (1, nothing, {"wait": False}),
    "dead stock": (2, dead_stock, {}),
    "slow store": (1, a_slow_store, {}),
    "slow store, not waiting": (0, a_slow_store, {"wait": False}),
    "full store": (1, a_full_store, {}),
    "full store, not waiting": (0, a_full_store, {"wait": False}),
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_lease_that_is_cut_short_anywhere_is_held_by_nobody(name: str) -> None:
    ready, prepare, wish = SITUATIONS[name]
    for steps in range(1, MOST_STEPS):
        async with open_bad_world() as world, world.daemon(template(ready=ready, max=4)) as front:
            await prepare(world, front)
            try:
                done = await cut(steps, lambda: front.lease(**wish))
            except SandboxdError as error:
                done = error.mask
            world.bad_store.slow_s = 0
            held = await living(front)
            assert len(held) <= done, f"after {steps} steps"
            assert len(await front.box_ids()) == ready + len(held)
            if done:
                return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("ready", [0, 1])
@pytest.mark.parametrize("wait", [True, False])
async def test_a_key_finds_its_one_sandbox_again_wherever_the_first_try_was_cut(
    ready: int, wait: bool
) -> None:
    for steps in range(1, MOST_STEPS):
        async with open_bad_world() as world, world.daemon(template(ready=ready, max=4)) as front:
            await front.full()
            wish = {"idempotency_key": "k", "wait": wait}
            done = await cut(steps, lambda: front.lease(**wish))  # noqa: B023 - used up here
            again = await front.lease(**wish)
            await calm(front)
            assert front.now(again).state is LeaseState.LEASED
            await agree(front)
            assert len(front.rooms.desk.book) == 1
            if done:
                return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("act", ["release", "renew", "run", "grading"])
async def test_what_is_cut_short_on_a_lease_leaves_a_lease_or_an_end(act: str) -> None:
    for steps in range(1, MOST_STEPS):
        async with open_bad_world() as world, world.daemon(template(ready=1, max=4)) as front:
            await front.full()
            lease = await front.lease(timeout_s=300, idle_timeout_s=0)
            desk = front.rooms.desk
            acts: dict[str, Callable[[], Awaitable[Any]]] = {
                "release": lambda: desk.release(lease.id, owner=OWNER, wait_s=5),  # noqa: B023
                "renew": lambda: desk.renew(lease.id, timeout_s=500, owner=OWNER),  # noqa: B023
                "run": lambda: front.run(lease, "true"),  # noqa: B023
                "grading": lambda: desk.begin_grading(front.tenancy(lease), for_s=200),  # noqa: B023
            }
            done = await cut(steps, acts[act])
            await calm(front, within_s=100)
            await agree(front)
            if act != "release":
                assert front.now(lease).state is LeaseState.LEASED
                assert (await front.run(lease, "true")).exit_code == 0
            await anyio.sleep(600)
            assert front.now(lease).over
            await calm(front)
            await agree(front)
            if done:
                return
    raise AssertionError("it never came to its end")
