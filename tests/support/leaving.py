"""A program that leaves an `async with client.lease(…)` in one of many ways, and says what it saw:
`python -m tests.support.leaving URL WAY` prints the exception's name, what is open, whom it held.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandboxd_client import AsyncSandbox, AsyncSandboxd, Sandboxd

Held = list[str]
# It has room for few, so that the next one waits. Its own user is not to be had on every machine.
TEMPLATE = "user"


async def _body_raises(client: AsyncSandboxd, held: Held) -> None:
    async with client.lease(TEMPLATE, user="root") as sandbox:
        held.append(sandbox.id)
        raise ZeroDivisionError


async def _set_up_raises(client: AsyncSandboxd, held: Held) -> None:
    async with client.lease(TEMPLATE, user="root") as sandbox, sandbox.shell(cwd="/no/such/place"):
        held.append(sandbox.id)


async def _cancelled_while_creating(client: AsyncSandboxd, held: Held) -> None:
    async def rollout() -> None:
        async with client.lease(TEMPLATE, user="root", run_id="creating"):
            pass

    async with client.lease(TEMPLATE, user="root", run_id="first") as first:
        held.append(first.id)
        task = asyncio.create_task(rollout())
        while not await client.sandboxes(run_id="creating"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        task.cancel()
        await task


async def _cancelled_in_the_body(client: AsyncSandboxd, held: Held) -> None:
    async def rollout() -> None:
        async with client.lease(TEMPLATE, user="root") as sandbox:
            held.append(sandbox.id)
            asyncio.get_running_loop().call_later(0.3, _this_task().cancel)
            await sandbox.exec("sleep 60")

    await asyncio.create_task(rollout())


async def _cancelled_while_exiting(client: AsyncSandboxd, held: Held) -> None:
    async def rollout() -> None:
        async with client.lease(TEMPLATE, user="root") as sandbox:
            held.append(sandbox.id)
            # Reaches the task once it waits for the answer to its release.
            asyncio.get_running_loop().call_soon(_this_task().cancel)

    await asyncio.create_task(rollout())


async def _interrupted(client: AsyncSandboxd, held: Held) -> None:
    async with client.lease(TEMPLATE, user="root") as sandbox:
        held.append(sandbox.id)
        asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
        await sandbox.exec("sleep 60")


async def _exits(client: AsyncSandboxd, held: Held) -> None:
    async with client.lease(TEMPLATE, user="root") as sandbox:
        held.append(sandbox.id)
        raise SystemExit(3)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _in_one_loop(way: Callable[[AsyncSandboxd, Held], Coroutine[Any, Any, None]]) -> Any:
    async def main(url: str, held: Held) -> None:
        async with AsyncSandboxd(url=url) as client:
            await way(client, held)

    return lambda url, held: asyncio.run(main(url, held))


def _loop_closed(url: str, held: Held) -> None:
    """Entered in one loop, which is closed; left in another, as fixtures of tests are."""
    client = AsyncSandboxd(url=url)

    async def use(opening: Any) -> AsyncSandbox:
        sandbox: AsyncSandbox = await opening.__aenter__()
        await sandbox.exec("true")
        return sandbox

    opening = client.lease(TEMPLATE, user="root")
    held.append(asyncio.run(use(opening)).id)
    asyncio.run(opening.__aexit__(None, None, None))


def _interrupted_in_the_twin(url: str, held: Held) -> None:
    with Sandboxd(url=url) as client, client.lease(TEMPLATE, user="root") as sandbox:
        held.append(sandbox.id)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        sandbox.exec("sleep 60")


WAYS: dict[str, tuple[Any, str]] = {
    "body raises": (_in_one_loop(_body_raises), "ZeroDivisionError"),
    "set-up raises": (_in_one_loop(_set_up_raises), "BadRequest"),
    "cancelled while creating": (_in_one_loop(_cancelled_while_creating), "CancelledError"),
    "cancelled in the body": (_in_one_loop(_cancelled_in_the_body), "CancelledError"),
    "cancelled while exiting": (_in_one_loop(_cancelled_while_exiting), "CancelledError"),
    "interrupted": (_in_one_loop(_interrupted), "KeyboardInterrupt"),
    "interrupted in the twin": (_interrupted_in_the_twin, "KeyboardInterrupt"),
    "exits": (_in_one_loop(_exits), "SystemExit"),
    "loop closed": (_loop_closed, ""),
}


def _open_sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder's own
            count += str(entry.readlink()).startswith("socket:")
    return count


def main() -> None:
    """Leave, and tell."""
    url, way = sys.argv[1:]
    held: Held = []
    seen = ""
    try:
        WAYS[way][0](url, held)
    except BaseException as error:  # noqa: BLE001 - what came is the whole question
        seen = type(error).__name__
        error.__traceback__ = None
    gc.collect()
    print(json.dumps({"seen": seen, "held": held, "sockets": _open_sockets()}), flush=True)


if __name__ == "__main__":
    main()
