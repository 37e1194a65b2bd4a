"""A way to an engine that can be told to fail: it stands before its socket and knows its calls."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory


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

    def takes(self, call: str) -> bool:
        """Whether this call fails; counts it."""
        if self.seen >= self.times or not re.search(self.calls, call):
            return False
        self.seen += 1
        return True


@dataclass(eq=False)
class EngineProxy:
    """A running proxy."""

    host: str
    faults: list[Fault] = field(default_factory=list)
    calls: set[asyncio.Task[None]] = field(default_factory=set)

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
        carry = partial(_carry, proxy, upstream.removeprefix("unix://"))
        server = await asyncio.start_unix_server(carry, path)
        try:
            yield proxy
        finally:
            server.close()
            for task in proxy.calls:
                task.cancel()
            await asyncio.gather(*proxy.calls, return_exceptions=True)


async def _carry(proxy: EngineProxy, upstream: str, reader: Reader, writer: Writer) -> None:
    """One call per connection, whichever way it ends."""
    task = asyncio.current_task()
    assert task is not None
    proxy.calls.add(task)
    try:
        head, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")
        call = head.split(b" HTTP/", 1)[0].decode()
        for fault in proxy.faults:
            if fault.takes(call):
                await _fail(writer, fault)
                return
        await _pass_on(upstream, _last_call(head) + rest, reader, writer)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
        proxy.calls.discard(task)


def _last_call(head: bytes) -> bytes:
    """The head, and that nothing comes after this call."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


async def _pass_on(upstream: str, head: bytes, reader: Reader, writer: Writer) -> None:
    engine_reader, engine_writer = await asyncio.open_unix_connection(upstream)
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
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _copy(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
