"""An event loop in a thread of its own, for programs whose own loops come and go."""

from __future__ import annotations

import threading  # noqa: TID251 - a loop beside the program's, which must not wait for it at its end
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal


class SideLoop:
    """It runs from the start on, until `close`; a program that ends does not wait for it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._portal: BlockingPortal
        thread = threading.Thread(
            target=anyio.run, args=(self._serve,), name="sandboxd-jupyter", daemon=True
        )
        thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        async with BlockingPortal() as self._portal:
            self._ready.set()
            await self._portal.sleep_until_stopped()

    async def start(self, task: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Start a task there; what it says with `task_status.started`. Raises what it raises."""

        def begin() -> Any:
            return self._portal.start_task(task, *args)[1]

        return await to_thread.run_sync(begin)

    async def call(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do it there, and wait for that."""
        await to_thread.run_sync(self._portal.call, act)

    def call_within(self, act: Callable[[], Awaitable[None]], *, seconds: float) -> None:
        """The same for who has no loop. Raises TimeoutError."""
        self._portal.start_task_soon(act).result(seconds)

    async def close(self) -> None:
        """End it, and what runs there."""
        await to_thread.run_sync(self._portal.call, self._portal.stop, True)  # noqa: FBT003
