"""Whatever happens in a `with` block, the sandbox is given back and the caller sees why."""

from __future__ import annotations

import anyio
import pytest

from sandboxd_client import AsyncSandbox, AsyncSandboxd, Capacity, Sandboxd

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HT-06")]


async def _fail_inside(client: AsyncSandboxd, held: list[AsyncSandbox]) -> None:
    async with client.lease("python") as sandbox:
        held.append(sandbox)
        raise ZeroDivisionError


async def _end_reason(client: AsyncSandboxd, sandbox_id: str) -> str | None:
    info = await client.sandbox(sandbox_id).info()
    return info.end.reason if info.end else None


async def test_an_error_in_the_body_releases_and_is_what_the_caller_sees(
    client: AsyncSandboxd,
) -> None:
    held: list[AsyncSandbox] = []
    with pytest.raises(ZeroDivisionError):
        await _fail_inside(client, held)
    assert await _end_reason(client, held[0].id) == "released"


async def test_cancelling_the_body_in_the_middle_of_a_command_releases(
    client: AsyncSandboxd,
) -> None:
    held: list[AsyncSandbox] = []
    with anyio.fail_after(10), anyio.CancelScope() as scope:
        async with client.lease("python") as sandbox, anyio.create_task_group() as tasks:
            held.append(sandbox)
            process = await sandbox.start(["cat"], stdin_open=True)
            tasks.start_soon(process.wait)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert await _end_reason(client, held[0].id) == "released"


async def test_what_gives_back_does_not_wait_behind_calls_that_last(
    daemon_url: str, client: AsyncSandboxd
) -> None:
    """Else a client with many long commands would let go of nothing in time."""
    async with AsyncSandboxd(daemon_url, connections=2) as busy:
        held = [await busy.lease("python") for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for sandbox in held[:2]:
                tasks.start_soon(sandbox.exec, ["sleep", "60"])
            with anyio.fail_after(10):
                while not all([await client.sandbox(each.id).execs() for each in held[:2]]):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            with anyio.fail_after(5):
                async with held[2]:
                    pass
                with anyio.move_on_after(0.1):  # waits for a connection, and then gives back
                    await busy.lease("python", run_id="given-back")
                await held[0].renew(100)
            assert await _end_reason(client, held[2].id) == "released"
            assert await client.sandboxes(run_id="given-back") == []
            tasks.cancel_scope.cancel()
    for sandbox in held:
        await client.sandbox(sandbox.id).release()


async def test_cancelling_a_lease_that_waits_leaves_the_queue(client: AsyncSandboxd) -> None:
    async with client.lease("single"):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def wait_in_vain() -> None:
                    async with client.lease("single"):
                        pytest.fail("there is only one")

                tasks.start_soon(wait_in_vain)
                await _until_queued(client, 1)
                tasks.cancel_scope.cancel()
            await _until_queued(client, 0)
    await _until_none_lives(client, "single")


async def test_cancelling_leases_at_any_moment_leaves_none_behind(client: AsyncSandboxd) -> None:
    for moment in range(12):
        with anyio.move_on_after(moment / 2000):
            await client.lease("python", run_id="cancelled")
            break  # from here on every lease comes through
    with anyio.fail_after(10):
        left = await client.sandboxes(run_id="cancelled")
    assert len(left) <= 1
    await client.release(run_id="cancelled")


async def test_a_lease_that_is_not_served_in_time_says_so_and_leaves_nothing(
    client: AsyncSandboxd,
) -> None:
    async with client.lease("single"):
        with pytest.raises(Capacity) as caught:
            await client.lease("single", wait_timeout_s=0.3)
        assert caught.value.mask
        await _until_queued(client, 0)


async def test_a_queued_lease_is_granted_once_its_turn_comes(client: AsyncSandboxd) -> None:
    order: list[str] = []

    async def wait_for_it() -> None:
        async with client.lease("single", wait_timeout_s=15):
            order.append("second")

    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks, client.lease("single"):
            tasks.start_soon(wait_for_it)
            await _until_queued(client, 1)
            order.append("first")
    assert order == ["first", "second"]


def test_keyboard_interrupt_in_a_synchronous_block_releases(sync_client: Sandboxd) -> None:
    with pytest.raises(KeyboardInterrupt), sync_client.lease("python") as sandbox:
        raise KeyboardInterrupt
    end = sandbox.info().end
    assert end is not None
    assert end.reason == "released"


async def _until_queued(client: AsyncSandboxd, count: int) -> None:
    with anyio.fail_after(5):
        while True:
            queued = {pool.template: pool.queued for pool in await client.pools()}
            if queued["single"] == count:
                return
            await anyio.sleep(0.01)


async def _until_none_lives(client: AsyncSandboxd, template: str) -> None:
    with anyio.fail_after(5):
        while True:
            if not any(info.template == template for info in await client.sandboxes()):
                return
            await anyio.sleep(0.01)
