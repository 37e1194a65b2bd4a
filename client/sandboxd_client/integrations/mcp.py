"""Sessions of the `mcp` package with servers of a sandbox: `pip install sandboxd[mcp]`.

Either line of that package will do, the one of sessions and the one without.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

_CONNECT_S = 30.0  # calls last as long as their tools


@asynccontextmanager
async def session_with(
    url: str, headers: Mapping[str, str], options: Mapping[str, Any]
) -> AsyncIterator[Any]:
    """An opened `mcp.Client`, or `mcp.ClientSession` where there is no such class yet.

    options: what that takes besides, like `sampling_callback`. Raises what the package raises.
    """
    package = import_module("mcp")
    transports = import_module("mcp.client.streamable_http")
    http = import_module("httpx2" if hasattr(package, "Client") else "httpx")
    async with AsyncExitStack() as stack:
        timeout = http.Timeout(_CONNECT_S, read=None)
        caller = await stack.enter_async_context(
            http.AsyncClient(headers=dict(headers), timeout=timeout)
        )
        transport = transports.streamable_http_client(url, http_client=caller)
        if hasattr(package, "Client"):
            yield await stack.enter_async_context(package.Client(transport, **options))
            return
        streams = await stack.enter_async_context(transport)
        session = package.ClientSession(*streams[:2], **options)
        await stack.enter_async_context(session)
        await session.initialize()
        yield session


class McpSession:
    """The same without `await`: each of its methods waits for its end. Others are as they are."""

    def __init__(self, portal: BlockingPortal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        async def act() -> Any:
            return await method(*args, **named)

        return self._portal.call(act)


@contextmanager
def blocking_session_with(
    url: str, headers: Mapping[str, str], options: Mapping[str, Any]
) -> Iterator[McpSession]:
    """`session_with` in a thread of its own, for who has no event loop."""
    with (
        start_blocking_portal(name="sandboxd-mcp") as portal,
        portal.wrap_async_context_manager(session_with(url, headers, options)) as inner,
    ):
        yield McpSession(portal, inner)
