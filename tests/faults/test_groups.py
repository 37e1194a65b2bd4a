"""Groups cut short at every step, and hurt at every stage: all of one or nothing of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.claim import ClaimFile
from sandboxd.model.lease import LeaseState
from sandboxd.wire.codes import ErrorCode, Fault
from tests.faults.conftest import BadWorld, open_bad_world
from tests.faults.quiet import agree, calm, living
from tests.faults.sabotage import Mishap
from tests.faults.test_cancel_everywhere import (
    MOST_STEPS,
    Prepare,
    a_full_store,
    a_slow_store,
    cut,
    dead_stock,
    nothing,
)
from tests.support.front import OWNER, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time, pytest.mark.timeout(120)]

SIZE = 3
SITUATIONS: dict[str, tuple[int, Prepare, dict[str, Any]]] = {
    "warm": (3, nothing, {}),
    "half warm": (1, nothing, {}),
    "from the queue": (0, nothing, {}),
    "not waiting": (1, nothing, {"wait": False}),
    "dead stock": (3, dead_stock, {}),
    "slow store": (1, a_slow_store, {}),
    "slow store, not waiting": (1, a_slow_store, {"wait": False}),
    "full store": (3, a_full_store, {}),
    "full store, not waiting": (0, a_full_store, {"wait": False}),
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_group_that_is_cut_short_anywhere_is_held_by_nobody(name: str) -> None:
    ready, prepare, wish = SITUATIONS[name]
    for steps in range(1, MOST_STEPS):
        async with open_bad_world() as world, world.daemon(template(ready=ready, max=8)) as front:
            await prepare(world, front)
            try:
                done = await cut(steps, lambda: front.group(SIZE, **wish))
            except SandboxdError as error:
                done = error.mask
            world.bad_store.slow_s = 0
            held = await living(front)
            assert len(held) in ({0, SIZE} if done else {0}), f"after {steps} steps"
            assert len(await front.box_ids()) == ready + len(held)
            assert front.rooms.house._gathering is None
            if done:
                return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("ready", [0, 3])
@pytest.mark.parametrize("wait", [True, False])
async def test_a_name_finds_its_one_group_again_wherever_the_first_try_was_cut(
    ready: int, wait: bool
) -> None:
    for steps in range(1, MOST_STEPS):
        async with open_bad_world() as world, world.daemon(template(ready=ready, max=8)) as front:
            await front.full()
            wish: dict[str, Any] = {"group_id": "g", "wait": wait}
            done = await cut(steps, lambda: front.group(SIZE, **wish))  # noqa: B023 - used up here
            again = await front.group(SIZE, **wish)
            await calm(front)
            assert {front.now(lease).state for lease in again} == {LeaseState.LEASED}
            await agree(front)
            assert len(front.rooms.desk.book) == SIZE
            if done:
                return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("during", ["a slow claim", "the write"])
async def test_one_that_dies_before_the_answer_frees_the_rest_or_is_replaced(
    world: BadWorld, during: str
) -> None:
    async with world.daemon(template(ready=3, max=8)) as front:
        await front.full()
        boxes = sorted(await front.box_ids())
        if during == "the write":
            world.bad_store.slow_s = 2.0
        else:
            world.sabotage.script["connect"].append(Mishap.SLOW)
        codes: list[ErrorCode] = []
        served: list[int] = []

        async def one() -> None:
            try:
                served.append(len(await front.group(SIZE)))
            except SandboxdError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await anyio.sleep(1)
            world.sabotage.inner.die(boxes[0])
        # While it is claimed another one takes its place; once written, all would be too late.
        assert (served, codes) in (([SIZE], []), ([], [ErrorCode.SANDBOX_LOST]))
        assert bool(codes) is (during == "the write")
        await anyio.sleep(60)  # leases that nobody has heard of are ended where nobody sees them
        await calm(front)
        await agree(front)
        for tenancy in front.rooms.desk.book:
            assert (await front.run(tenancy.lease, "true")).exit_code == 0


async def test_a_file_that_cannot_be_written_frees_all_and_is_the_caller_s_fault(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=3, max=8)) as front:
        await front.full()
        files = (ClaimFile(path="a", data=b""), ClaimFile(path="a/b", data=b""))
        with pytest.raises(SandboxdError) as caught:
            await front.group(SIZE, files=files)
        assert (caught.value.code, caught.value.fault) == (ErrorCode.BAD_REQUEST, Fault.CLIENT)
        await calm(front)
        await agree(front)
        assert len(front.rooms.desk.book) == 0


async def test_closing_answers_a_group_that_waits(world: BadWorld) -> None:
    async with world.daemon(template(ready=0, max=3)) as front:
        held = await front.lease()
        codes: list[ErrorCode] = []

        async def one() -> None:
            try:
                await front.group(SIZE, wait_timeout_s=900)
            except SandboxdError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await anyio.sleep(1)
            front.rooms.desk.granting.close()
        assert codes == [ErrorCode.SHUTTING_DOWN]
        await front.rooms.desk.release(held.id, owner=OWNER)
        await calm(front)
        assert await front.box_ids() == set()


async def test_clearing_everything_while_a_group_is_claimed_leaves_no_lease(
    world: BadWorld,
) -> None:
    async with world.daemon(template(ready=3, max=3)) as front:
        await front.full()
        world.sabotage.script["connect"].append(Mishap.SLOW)
        errors: list[SandboxdError] = []

        async def one() -> None:
            try:
                await front.group(SIZE)
            except SandboxdError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await anyio.sleep(1)
            assert await front.rooms.clear() == 0
        assert [error.mask for error in errors] == [True]
        assert await front.box_ids() == set()
