"""One client in several event loops, threads and processes."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from sandboxd_client import AsyncSandboxd, Sandboxd
from tests.support.daemon import RunningDaemon


def _version_in_a_loop(client: AsyncSandboxd, backend: str) -> str:
    async def ask() -> str:
        first = await client.version()
        second = await client.version()  # on the first one's connection
        await client.aclose()
        assert first == second
        return first.version

    return anyio.run(ask, backend=backend)


def test_one_client_serves_loop_after_loop_and_both_kinds(daemon: RunningDaemon) -> None:
    client = AsyncSandboxd(daemon.url)
    for backend in ("asyncio", "trio", "asyncio"):
        assert _version_in_a_loop(client, backend)


def test_pools_of_loops_that_are_gone_are_forgotten(daemon: RunningDaemon) -> None:
    client = AsyncSandboxd(daemon.url)
    pools = client._api._transport._pools

    async def ask_and_leave_open() -> None:
        await client.version()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # left open is what this is about
        for _ in range(3):
            anyio.run(ask_and_leave_open)
        assert len(pools) == 1
        _version_in_a_loop(client, "asyncio")
        assert len(pools) == 0
        gc.collect()


def test_one_client_serves_loops_of_several_threads_at_once(daemon: RunningDaemon) -> None:
    client = AsyncSandboxd(daemon.url)
    with ThreadPoolExecutor(6) as threads:
        backends = ["asyncio", "trio"] * 6
        assert len(list(threads.map(lambda b: _version_in_a_loop(client, b), backends))) == 12


def test_the_twin_serves_many_threads_at_once(daemon: RunningDaemon) -> None:
    with Sandboxd(daemon.url) as client, client.lease("python") as sandbox:
        with ThreadPoolExecutor(8) as threads:
            run = threads.map(lambda n: sandbox.exec(["echo", str(n)]).stdout, range(100))
        assert list(run) == [f"{n}\n" for n in range(100)]


def _in_a_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child; a child that fails says how."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is what is tried
        child = os.fork()
    if child == 0:
        try:
            os.write(write, work().encode())
        except BaseException as error:  # noqa: BLE001 - the child must not run on as a test
            os.write(write, f"failed: {error!r}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_parent_and_child_use_connections_of_their_own_after_a_fork(daemon: RunningDaemon) -> None:
    with Sandboxd(daemon.url) as client, client.lease("python") as sandbox:
        assert sandbox.exec("echo before").ok
        children = [
            _in_a_child(lambda: sandbox.exec("echo from the child").stdout) for _ in range(3)
        ]
        assert children == ["from the child\n"] * 3
        assert sandbox.exec("echo after").stdout == "after\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_with_an_asynchronous_client_in_use(daemon: RunningDaemon) -> None:
    client = AsyncSandboxd(daemon.url)

    async def ask_and_fork() -> None:
        version = (await client.version()).version
        assert _in_a_child(lambda: _child(client)) == version
        assert (await client.version()).version == version
        await client.aclose()

    anyio.run(ask_and_fork)


def _child(client: AsyncSandboxd) -> str:
    said: list[str] = []
    with ThreadPoolExecutor(1) as thread:  # this one is the parent's loop
        said.append(thread.submit(_version_in_a_loop, client, "asyncio").result())
    return said[0]
