"""A call that is cancelled at any of its waits: the guest stays usable, nothing runs twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from sandboxd.guest import Guest
from sandboxd.model.ids import new_id
from tests.conformance.guest.steps import command, end_of, script, sh, until

_WAITS = 24


async def cancelled_after(steps: int, call: Callable[[], Awaitable[object]]) -> None:
    """Begin a call, let the loop turn so many times, cancel it."""
    async with anyio.create_task_group() as group:

        async def begin() -> None:
            await call()

        group.start_soon(begin)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def test_command_cancelled_at_any_wait_runs_at_most_once(guest: Guest) -> None:
    with anyio.fail_after(18):
        for steps in range(_WAITS):
            order = script(f"echo x >> /workspace/n{steps}")
            await cancelled_after(steps, partial(guest.run, order, wait=True))
            await guest.run(order, wait=True)
            assert (await guest.files.stat(f"/workspace/n{steps}")).size == 2


@pytest.mark.parametrize("call", ["hello", "write", "read", "list", "attach", "stdin"])
async def test_guest_is_usable_after_a_call_that_was_cancelled(guest: Guest, call: str) -> None:
    await guest.files.write("f", bytes(1 << 18))
    for steps in range(_WAITS):
        exec_id = new_id("exec")

        async def read() -> None:
            async with guest.files.read("f") as body:
                async for _ in body.chunks():
                    pass

        async def listed() -> None:
            async for _ in guest.files.list("."):
                pass

        async def attach(exec_id: str = exec_id) -> None:
            await guest.run(command("cat", stdin_open=True, exec_id=exec_id), wait=False)
            async with guest.attach(exec_id) as attachment:
                async for _ in attachment:
                    pass

        async def stdin(exec_id: str = exec_id) -> None:
            await guest.run(command("sleep", "100", stdin_open=True, exec_id=exec_id), wait=False)
            await guest.write_stdin(exec_id, bytes(1 << 20))

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "hello": guest.hello,
            "write": lambda: guest.files.write("f", bytes(1 << 18)),
            "read": read,
            "list": listed,
            "attach": attach,
            "stdin": stdin,
        }
        with anyio.fail_after(10):
            await cancelled_after(steps, calls[call])
            assert (await guest.hello()).boot_id
    with anyio.fail_after(5):
        await guest.kill_all()
        assert (await guest.files.stat("f")).size == 1 << 18
    assert (await sh(guest, "echo fine")).stdout.head == b"fine\n"


async def test_write_cancelled_at_any_wait_is_whole_or_not_at_all(guest: Guest) -> None:
    old, new = b"o" * 300_000, b"n" * 300_000
    await guest.files.write("d/f", old)
    with anyio.fail_after(18):
        for steps in range(_WAITS):
            await cancelled_after(steps, lambda: guest.files.write("d/f", new))
            async with guest.files.read("d/f") as body:
                assert b"".join([piece async for piece in body.chunks()]) in {old, new}

    async def only_the_file_is_there() -> bool:
        return [entry.name async for entry in guest.files.list("d")] == ["f"]

    await until(only_the_file_is_there)


async def test_wait_that_is_cancelled_is_taken_up_again(guest: Guest) -> None:
    order = script("sleep 0.6; exit 9")
    for _ in range(3):
        with anyio.move_on_after(0.1):
            await guest.run(order, wait=True)
    assert (await end_of(guest, order.exec_id)).exit_code == 9
