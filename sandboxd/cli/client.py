"""What client verbs share: the SDK, an event loop for one verb, and its errors in a sentence."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import anyio

from sandboxd_client import AsyncSandboxd, SandboxdError

# A person waits: long enough for a daemon that is just starting, no longer.
_PATIENCE_S = 2.0
# With what runs inside, that a restart of the daemon does not end; or a train through a tunnel.
LASTING_S = 60.0
_DEFAULT_URL = "http://127.0.0.1:8420"


def with_client(
    verb: Callable[[AsyncSandboxd], Awaitable[int]], *, patience_s: float = _PATIENCE_S
) -> int:
    """Run a verb with a client to the daemon that the variables name.

    patience_s: with a daemon that was there; whoever has a wrong address need not wait so long.
    """

    async def run() -> int:
        if patience_s > _PATIENCE_S:
            await knock()
        async with AsyncSandboxd(patience_s=patience_s) as client:
            return await verb(client)

    try:
        return anyio.run(run)
    except BaseExceptionGroup as group:
        raise _first_leaf(group) from group


async def knock() -> None:
    """Raises the SDK's error if nobody is there."""
    async with AsyncSandboxd(patience_s=_PATIENCE_S) as client:
        await client.version()


def sentence(error: Exception) -> str:
    """An SDK error as one line that names the mend where we know one."""
    if not isinstance(error, SandboxdError):
        return str(error)
    url = os.environ.get("SANDBOXD_API_URL") or _DEFAULT_URL
    if error.code == "api_unreachable":
        return (
            f"no daemon at {url} ({error.detail}); start `sandboxd serve` or set SANDBOXD_API_URL"
        )
    if error.code == "unauthenticated":
        return f"{url} wants a key; set SANDBOXD_API_KEY to one of the daemon's"
    return f"{error.detail} ({error.code})"


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
