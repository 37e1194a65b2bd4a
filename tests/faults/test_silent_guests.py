"""A guest that says nothing, frozen or out of reach, keeps no caller: whatever it waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import SILENCE_S, START_S
from sandboxd.guest.guest_files import STALL_S
from sandboxd.model.command import Command
from sandboxd.model.lease import Lease
from sandboxd.model.shell import ShellOrder, ShellText
from tests.faults.conftest import BadWorld
from tests.faults.sabotage import Mishap
from tests.support.front import OWNER, Front, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

Call = Callable[[Front, Lease], Awaitable[Any]]


async def follow(front: Front, lease: Lease) -> None:
    async for _ in front.rooms.commands.follow(lease.id, "known", owner=OWNER):
        pass


async def run_in_shell(front: Front, lease: Lease) -> None:
    text = ShellText(exec_id="in-shell", text="sleep 5000")
    await front.rooms.shells.run(lease.id, "shell", text, owner=OWNER, wait_s=None)


async def read(front: Front, lease: Lease) -> None:
    reading = front.rooms.files.read(
        lease.id, "/workspace/big", owner=OWNER, offset=0, limit=None, user=""
    )
    async with reading as body:
        async for _ in body.chunks():
            await anyio.sleep(0.1)


async def write(front: Front, lease: Lease, *, pause_s: float = 0.1, pieces: int = 50) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            await anyio.sleep(pause_s)
            yield b"x"

    await front.rooms.files.write(
        lease.id, "/workspace/new", slowly(), owner=OWNER, size=None, mode=None, user=""
    )


CALLS: dict[str, Call] = {
    "run": lambda front, lease: front.run(lease, "sleep", "5000"),
    "run with a deadline": lambda front, lease: front.run(lease, "sleep", "9", timeout_s=3000.0),
    "start": lambda front, lease: front.start(lease, "sleep", "5000"),
    "shell": run_in_shell,
    "follow": follow,
    "read": read,
    "write": write,
    "look": lambda front, lease: front.rooms.commands.look(lease.id, "known", owner=OWNER),
    "list": lambda front, lease: front.rooms.commands.list(lease.id, owner=OWNER),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("under_way", [False, True])
async def test_a_call_ends_within_its_bound_and_the_lease_lives(
    world: BadWorld, name: str, under_way: bool
) -> None:
    async with world.daemon(template(ready=1)) as front:
        lease = await front.lease(idle_timeout_s=0, timeout_s=10_000)
        known = Command(exec_id="known", argv=("sleep", "5000"))
        await front.rooms.commands.start(lease.id, known, owner=OWNER)
        await front.rooms.files.write(
            lease.id, "big", b"x" * (8 << 20), owner=OWNER, size=None, mode=None, user=""
        )
        await front.rooms.shells.open(lease.id, ShellOrder(shell_id="shell"), owner=OWNER)
        silence = world.sabotage.script["connect"]

        def fall_silent() -> None:
            silence.extend([Mishap.HANG] * 100)
            world.sabotage.inner.drop_connections()

        async with anyio.create_task_group() as tasks:
            if under_way:
                tasks.start_soon(_later, fall_silent)
            else:
                fall_silent()
            began = anyio.current_time()
            answered = name in {"start", "look", "list"} and under_way
            if answered:
                await CALLS[name](front, lease)
            else:
                with pytest.raises((TimeoutError, SandboxdError)) as caught:
                    await CALLS[name](front, lease)
                # A stream of bytes whose line is cut cannot be mended, and says so at once.
                assert isinstance(caught.value, TimeoutError) or name in {"read", "write"}
                assert anyio.current_time() - began <= SILENCE_S + START_S + 1
        assert front.now(lease).end is None
        silence.clear()
        assert (await front.run(lease, "true")).exit_code == 0


async def test_a_caller_may_be_as_slow_as_it_likes(world: BadWorld) -> None:
    async with world.daemon(template(ready=1)) as front:
        lease = await front.lease(idle_timeout_s=0, timeout_s=10_000)
        await write(front, lease, pause_s=10 * STALL_S, pieces=3)
        assert (await front.run(lease, "cat", "new")).stdout.head == b"xxx"


async def _later(act: Callable[[], None]) -> None:
    await anyio.sleep(1)
    act()
