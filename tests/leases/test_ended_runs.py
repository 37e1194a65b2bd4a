"""A run that is ended while leases of it are asked for, queued, claimed and written: none stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import EndReason, ErrorCode
from tests.faults.conftest import BadWorld, open_bad_world
from tests.faults.quiet import agree, calm
from tests.support.front import OWNER, Front, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

_SLOW_S = 0.05  # for each write of the store: the run is ended in about a second
_EVERY_S = 0.02


@pytest.fixture
async def bad_world() -> AsyncIterator[BadWorld]:
    """A world whose store is slow."""
    async with open_bad_world() as opened:
        opened.bad_store.slow_s = _SLOW_S
        yield opened


async def end(front: Front, run_id: str = "r", *, owner: str | None = OWNER) -> list[str]:
    """What its DELETE does."""
    with front.rooms.runs.ending(run_id, owner=owner) as leases:
        released, failed = await front.rooms.desk.release_all(leases, owner=owner)
        await front.rooms.runs.forget(run_id, owner=owner)
    assert failed == []
    return released


async def ask(front: Front, number: int) -> None:
    """One request of the run, of each kind in turn; it is granted, or told that the run ends."""
    key = f"k{number % 3}"
    with suppress(SandboxdError):
        match number % 5:
            case 0:
                await front.lease(run_id="r")
            case 1:
                await front.lease(run_id="r", wait=False)
            case 2:
                await front.lease(run_id="r", idempotency_key=key)
            case 3:
                await front.group(2, run_id="r")
            case _:
                await front.group(2, run_id="r", group_id=key, wait=False)


def left(front: Front) -> list[str]:
    """The leases of the run that are not over."""
    return [tenancy.lease.id for tenancy in front.rooms.runs.leases_of("r", owner=OWNER)]


@pytest.mark.parametrize("known", [True, False], ids=["heard-of", "never-heard-of"])
@pytest.mark.parametrize("moment_s", [0.001, 0.01, 0.06, 0.11, 0.17, 0.3, 0.55])
async def test_none_survives_the_end_of_its_run_whatever_became_of_it_by_then(
    bad_world: BadWorld, moment_s: float, known: bool
) -> None:
    async with bad_world.daemon(template(ready=3, max=8)) as front:
        await front.full()
        if known:
            await front.rooms.runs.beat("r", ttl_s=60, owner=OWNER)
        async with anyio.create_task_group() as tasks:
            ended = anyio.Event()

            async def keep_asking() -> None:
                number = 0
                while not ended.is_set():
                    tasks.start_soon(ask, front, number)
                    number += 1
                    await anyio.sleep(_EVERY_S)

            tasks.start_soon(keep_asking)
            await anyio.sleep(moment_s)
            released = await end(front)
            ended.set()
            assert left(front) == []
            assert released
        assert left(front) == [], "none that was asked for before the answer came later"
        await calm(front)
        await agree(front)
        again = await front.lease(run_id="r")  # the name is free
        assert front.now(again).end is None


async def test_a_retry_under_its_key_makes_no_new_lease_of_a_run_that_is_being_ended(
    bad_world: BadWorld,
) -> None:
    async with bad_world.daemon(template(ready=1, max=1)) as front:
        await front.full()
        held = await front.lease(idle_timeout_s=0)
        errors: list[SandboxdError] = []

        async def wait() -> None:
            with pytest.raises(SandboxdError) as caught:
                await front.lease(run_id="r", idempotency_key="k")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(1)
            tasks.start_soon(end, front)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(wait)
        assert {error.code for error in errors} <= {ErrorCode.CONFLICT, ErrorCode.LEASE_ENDED}
        assert left(front) == []
        assert front.now(held).end is None


async def test_the_operator_ends_runs_of_all_keys_at_once_and_leaves_other_runs_alone(
    bad_world: BadWorld,
) -> None:
    async with bad_world.daemon(template(ready=3, max=8)) as front:
        await front.full()
        mine, other = await front.lease(run_id="r"), await front.lease(run_id="other")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: end(front, owner=None))
            await anyio.sleep(_SLOW_S / 2)
            with pytest.raises(SandboxdError, match="being ended"):
                await front.lease(run_id="r")
            await front.lease(run_id="other")
        ended = front.now(mine).end
        assert ended is not None
        assert ended.reason is EndReason.RELEASED
        assert front.now(other).end is None
