"""Tasks that run beside a backend for as long as it is open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """A group for them; they are cancelled on leaving. What is raised inside passes as it is."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            # A task group would wrap what is none of its tasks' doing.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
