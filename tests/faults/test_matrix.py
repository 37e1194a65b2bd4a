"""Whatever goes wrong at whichever step, every caller gets a sandbox or a named, masked error, and
nothing is left over."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import EndReason
from tests.faults.conftest import BadWorld
from tests.faults.quiet import agree, calm
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, Front, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

MATRIX = [
    *[("make", mishap) for mishap in Mishap if mishap is not Mishap.VANISH],
    *[("connect", mishap) for mishap in Mishap if mishap is not Mishap.LATE],
    *[("dispose", mishap) for mishap in Mishap],
    *[("look", mishap) for mishap in Mishap],
    *[("read", mishap) for mishap in (Mishap.FAIL, Mishap.HANG, Mishap.SLOW)],
    *[("put", mishap) for mishap in (Mishap.FAIL, Mishap.SLOW)],
]


class Callers:
    """A crowd that leases, works and releases, and what became of each."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.served = 0
        self.errors: list[SandboxdError] = []
        self.box_ids: list[str] = []

    async def come(self, count: int) -> None:
        with anyio.fail_after(3000):
            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(self._one, number)

    async def _one(self, number: int) -> None:
        try:
            # A key of its own, so that the waiting kind of request is in the crowd twice.
            lease = await self.front.lease(
                wait_timeout_s=900, idempotency_key=f"{id(self)}-{number}" if number % 2 else None
            )
            assert lease.box is not None
            self.box_ids.append(lease.box.box_id)
            record = await self.front.run(lease, "echo", str(number))
            assert record.stdout.head == f"{number}\n".encode()
            done = await self.front.rooms.desk.release(lease.id, owner=OWNER)
            assert done.end is not None
            assert done.end.reason in {EndReason.RELEASED, EndReason.DIED}
            self.served += 1
        except SandboxdError as error:
            self.errors.append(error)


@pytest.mark.parametrize(("step", "mishap"), MATRIX)
@pytest.mark.parametrize("ready", [0, 2])
async def test_every_fault_at_every_step(
    world: BadWorld, step: str, mishap: Mishap, ready: int
) -> None:
    async with world.daemon(template(ready=ready, max=4, starting=2)) as front:
        await front.full()
        script = world.bad_store.script if step == "put" else world.sabotage.script[step]
        script.extend([mishap] * 3)
        callers = Callers(front)
        await callers.come(8)
        script.clear()
        assert callers.served + len(callers.errors) == 8
        assert len(callers.errors) <= 3, callers.errors
        assert all(error.mask for error in callers.errors)
        assert len(set(callers.box_ids)) == len(callers.box_ids), "a box was handed out twice"
        await calm(front)
        await agree(front)
        assert len(await front.box_ids()) == ready
        again = Callers(front)
        await again.come(6)
        assert again.served == 6


async def test_all_lines_break_in_the_middle_of_everything(world: BadWorld) -> None:
    async with world.daemon(template(ready=2, max=4)) as front:
        callers = Callers(front)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(callers.come, 20)
            for _ in range(20):
                await anyio.sleep(0.001)
                world.sabotage.inner.drop_connections()
        assert len(set(callers.box_ids)) == len(callers.box_ids)
        assert all(error.mask for error in callers.errors)
        await calm(front)
        await agree(front)


@pytest.mark.parametrize("step", ["list_owned", "look"])
async def test_a_backend_that_is_blind_at_start_is_no_reason_to_lose_anything(
    world: BadWorld, step: str
) -> None:
    async with world.daemon(template(ready=1)) as front:
        await front.full()
        lease = await front.lease()
    world.sabotage.script[step].extend([Mishap.HANG] * 2)
    with suppress(ExceptionGroup):  # it refuses to start, or starts and loses nothing
        async with world.daemon(template(ready=1)):
            pass
    world.sabotage.script.clear()
    async with world.daemon(template(ready=1)) as front:
        assert (await front.run(lease, "true")).exit_code == 0
        await calm(front)
        await agree(front)
