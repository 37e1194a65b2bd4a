"""A way to an engine or an API server that can be told to fail: it stands before it and knows its
calls.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory

Dial = Callable[[], Awaitable[tuple[Reader, Writer]]]


@dataclass(eq=False)
class Fault:
    """Calls that match fail, the first `times` of them. hang: they are never answered.

    seen: how many did.
    """

    calls: str  # a pattern of `METHOD /path`
    status: int = 500
    words: str = "a fault of the test"
    times: int = 1
    hang: bool = False
    seen: int = 0
    retry_after_s: int | None = None

    def takes(self, call: str) -> bool:
        """Whether this call fails; counts it."""
        if self.seen >= self.times or not re.search(self.calls, call):
            return False
        self.seen += 1
        return True


@dataclass(eq=False)
class EngineProxy:
    """A running proxy. made: every call that came, as `METHOD /path`."""

    host: str
    made: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    calls: set[asyncio.Task[None]] = field(default_factory=set)

    def cut(self) -> None:
        """Break off every call that is under way."""
        for task in self.calls:
            task.cancel()

    def fail(self, fault: Fault) -> Fault:
        """Add a fault."""
        self.faults.append(fault)
        return fault


@asynccontextmanager
async def engine_proxy(upstream: str) -> AsyncIterator[EngineProxy]:
    """Before the engine at `upstream`, on a socket of its own."""
    with TemporaryDirectory(prefix="sbx-") as directory:
        path = f"{directory}/p.sock"
        proxy = EngineProxy(f"unix://{path}")
        dial = partial(asyncio.open_unix_connection, upstream.removeprefix("unix://"))
        server = await asyncio.start_unix_server(partial(_carry, proxy, dial), path)
        async with _served(proxy, server):
            yield proxy


@asynccontextmanager
async def server_proxy(port: int, context: ssl.SSLContext) -> AsyncIterator[EngineProxy]:
    """Before this machine's API server at `port`, on a port of its own, where HTTP is plain.

    context: with the credentials of whoever all callers then are.
    """
    proxy = EngineProxy("")
    dial = partial(asyncio.open_connection, "127.0.0.1", port, ssl=context)
    server = await asyncio.start_server(partial(_carry, proxy, dial), "127.0.0.1")
    proxy.host = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with _served(proxy, server):
        yield proxy


@asynccontextmanager
async def _served(proxy: EngineProxy, server: asyncio.Server) -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()
        for task in proxy.calls:
            task.cancel()
        await asyncio.gather(*proxy.calls, return_exceptions=True)


async def _carry(proxy: EngineProxy, dial: Dial, reader: Reader, writer: Writer) -> None:
    """One call per connection, whichever way it ends."""
    task = asyncio.current_task()
    assert task is not None
    proxy.calls.add(task)
    try:
        head, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")
        call = head.split(b" HTTP/", 1)[0].decode()
        proxy.made.append(call)
        for fault in proxy.faults:
            if fault.takes(call):
                await _fail(writer, fault)
                return
        await _pass_on(dial, _last_call(head) + rest, reader, writer)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
        proxy.calls.discard(task)


def _last_call(head: bytes) -> bytes:
    """The head, and that nothing comes after this call."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


async def _pass_on(dial: Dial, head: bytes, reader: Reader, writer: Writer) -> None:
    engine_reader, engine_writer = await dial()
    try:
        engine_writer.write(head)
        up = asyncio.create_task(_copy(reader, engine_writer))
        try:
            await _copy(engine_reader, writer)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
    finally:
        engine_writer.close()


async def _fail(writer: Writer, fault: Fault) -> None:
    if fault.hang:
        await asyncio.Event().wait()
    body = json.dumps({"message": fault.words}).encode()
    head = f"HTTP/1.1 {fault.status} Fault\r\nContent-Type: application/json\r\n"
    if fault.retry_after_s is not None:
        head += f"Retry-After: {fault.retry_after_s}\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _copy(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
