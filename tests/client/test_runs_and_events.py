"""Runs and events by the SDK and its twin: heard of while inside, all released outside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from sandboxd_client import (
    ApiUnreachable,
    AsyncSandbox,
    AsyncSandboxd,
    Conflict,
    Event,
    LeaseEnded,
    Sandboxd,
)
from sandboxd_client._core.heart import Heart
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._core.sse import BlockSplitter, ServerSent
from tests.client.conftest import CONFIG
from tests.faults.account import free_port
from tests.support.service import service

pytestmark = pytest.mark.anyio

_PATIENCE_S = 15.0


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hearts() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("sandboxd-run-")]


async def test_a_run_is_heard_of_while_inside_and_all_is_released_outside(
    client: AsyncSandboxd,
) -> None:
    run_id = fresh_id("run")
    async with client.run(run_id, ttl_s=1) as run:
        sandbox = await client.lease("python", run_id=run_id)
        await anyio.sleep(2.5)  # more than two of its lives
        assert not run.lost
        assert run.trouble is None
        info = await run.info()
        assert (info.state, info.leased) == ("active", 1)
        assert run_id in [known.run_id for known in await client.runs()]
    end = (await sandbox.info()).end
    assert end is not None
    assert (end.reason, end.mask) == ("released", False)
    assert run_id not in [known.run_id for known in await client.runs()]
    assert f"sandboxd-run-{run_id}" not in hearts()


async def test_a_loop_that_computes_for_long_is_still_heard_of(client: AsyncSandboxd) -> None:
    async with client.run(fresh_id("run"), ttl_s=1) as run:
        time.sleep(2.5)  # noqa: ASYNC251 - what the trainer's own code does
        assert (await run.info()).state == "active"


async def test_an_exception_and_a_cancellation_release_all_and_come_through(
    client: AsyncSandboxd,
) -> None:
    ids = fresh_id("run"), fresh_id("run")

    async def fail() -> None:
        async with client.run(ids[0]):
            leased.append(await client.lease("python", run_id=ids[0]))
            raise KeyError("mine")

    leased: list[AsyncSandbox] = []
    with pytest.raises(KeyError, match="mine"):
        await fail()
    with anyio.move_on_after(30) as scope:
        async with client.run(ids[1]):
            leased.append(await client.lease("python", run_id=ids[1]))
            scope.cancel()
            await anyio.sleep_forever()
    for sandbox in leased:
        end = (await sandbox.info()).end
        assert end is not None
        assert end.reason == "released"


async def test_entering_that_is_cancelled_at_any_moment_leaves_no_run_behind(
    client: AsyncSandboxd,
) -> None:
    tried = []
    for moment in range(40):
        tried.append(fresh_id("run"))
        with anyio.move_on_after(moment / 5000) as scope:
            async with client.run(tried[-1], ttl_s=60):
                await anyio.lowlevel.checkpoint()
        if not scope.cancelled_caught and moment > 20:
            break  # from here on each comes through
    known = [run.run_id for state in ("active", "lost") for run in await client.runs(state=state)]
    assert not set(known) & set(tried)
    assert not [name for name in hearts() if name.removeprefix("sandboxd-run-") in tried]


async def test_a_run_that_was_lost_says_so_and_its_leases_mask(
    client: AsyncSandboxd, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = fresh_id("run")
    beats = threading.Event()
    plain = Heart.start
    # A process that is stopped for longer than its ttl.
    monkeypatch.setattr(Heart, "start", lambda heart: (beats.wait(0), None)[1])
    async with client.run(run_id, ttl_s=1) as run:
        sandbox = await client.lease("python", run_id=run_id)
        with anyio.fail_after(_PATIENCE_S):
            while (await run.info()).state == "active":  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert run._heart is not None
        plain(run._heart)  # goes on
        with anyio.fail_after(_PATIENCE_S):
            while not run.lost:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        with pytest.raises(LeaseEnded) as caught:
            await sandbox.exec("true")
        assert caught.value.mask
        with pytest.raises(Conflict):
            await client.lease("python", run_id=run_id)
        with pytest.raises(Conflict):
            async with client.run(run_id):
                pass
    async with client.run(run_id):  # its name is free again
        pass


def test_the_twin_s_run_is_heard_of_from_a_thread_of_its_own(sync_client: Sandboxd) -> None:
    run_id = fresh_id("run")
    with sync_client.run(run_id, ttl_s=1) as run:
        sandbox = sync_client.lease("python", run_id=run_id)
        time.sleep(2.5)
        assert run.info().leased == 1
    end = sandbox.info().end
    assert end is not None
    assert end.reason == "released"
    assert hearts() == []


def test_a_forked_child_leaves_the_run_to_its_parent(sync_client: Sandboxd) -> None:
    run_id = fresh_id("run")
    with sync_client.run(run_id, ttl_s=5) as run:
        pid = os.fork()
        if pid == 0:
            try:
                run.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert run.info().state == "active"


@pytest.mark.timeout(90)
def test_a_run_goes_on_through_a_restart_of_the_daemon(tmp_path: Path) -> None:
    with (
        service(tmp_path, backend="fake", config=CONFIG, port=free_port()) as daemon,
        Sandboxd(daemon.url) as client,
        client.run("r", ttl_s=3) as run,
    ):
        daemon.kill()
        eventually(lambda: isinstance(run.trouble, ApiUnreachable))
        daemon.start()
        eventually(lambda: run.trouble is None)
        assert (run.lost, run.info().state) == (False, "active")


async def test_events_are_followed_and_the_missed_come_first(client: AsyncSandboxd) -> None:
    run_id = fresh_id("run")
    seen: list[Event] = []
    async with client.lease("python", run_id=run_id):
        pass
    with anyio.fail_after(_PATIENCE_S):
        async with aclosing(client.events(run_id=run_id, after="none-0")) as events:
            assert (await anext(events)).type == "gap"
            while not seen or seen[-1].type != "lease.ended":
                seen.append(await anext(events))
    first = seen[0]
    assert {event.type for event in seen} >= {"lease.leased", "lease.ended"}
    assert seen[-1].end is not None
    assert seen[-1].end.reason == "released"
    with anyio.fail_after(_PATIENCE_S):
        async with aclosing(client.events(run_id=run_id, after=first.id)) as again:
            assert (await anext(again)).id == seen[1].id


@pytest.mark.timeout(90)
def test_events_go_on_through_a_restart_of_the_daemon(tmp_path: Path) -> None:
    with (
        service(tmp_path, backend="fake", config=CONFIG, port=free_port()) as daemon,
        Sandboxd(daemon.url) as client,
        closing(client.events(after="none-0")) as events,
    ):
        assert next(events).type == "gap"
        client.lease("python")
        assert next(events).type.startswith("lease.")
        daemon.kill()
        daemon.start()
        while next(events).type != "gap":
            pass


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_come_out_however_the_chunks_fall(size: int) -> None:
    stream = ': keepalive\nid: a-1\n\nid: a-2\nevent: x\ndata: {"é": 1}\n\n'.encode()
    splitter = BlockSplitter()
    found = []
    for start in range(0, len(stream), size):
        found += splitter.feed(stream[start : start + size])
    assert found == [ServerSent(id="a-1"), ServerSent(id="a-2", event="x", data='{"é": 1}')]
