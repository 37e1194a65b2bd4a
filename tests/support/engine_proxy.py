"""A way to an engine that can be told to fail: it stands before its socket and knows its calls."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import ByteStream

_HEAD_BYTES = 65536


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

    def fail(self, fault: Fault) -> Fault:
        """Add a fault."""
        self.faults.append(fault)
        return fault


@asynccontextmanager
async def engine_proxy(upstream: str) -> AsyncIterator[EngineProxy]:
    """Before the engine at `upstream`, on a socket of its own."""
    with TemporaryDirectory(prefix="sbx-") as directory:
        path = Path(directory) / "p.sock"
        proxy = EngineProxy(f"unix://{path}")
        async with (
            anyio.create_task_group() as tasks,
            await anyio.create_unix_listener(path) as ear,
        ):
            tasks.start_soon(ear.serve, partial(_carry, proxy, upstream.removeprefix("unix://")))
            yield proxy
            tasks.cancel_scope.cancel()


async def _carry(proxy: EngineProxy, upstream: str, caller: ByteStream) -> None:
    """One call per connection, whichever way it ends."""
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError, OSError):
        async with caller:
            head, rest = await _head(caller)
            call = head.split(b" HTTP/", 1)[0].decode()
            for fault in proxy.faults:
                if fault.takes(call):
                    await _fail(caller, fault)
                    return
            async with await anyio.connect_unix(upstream) as engine:
                await engine.send(head + b"\r\nConnection: close\r\n\r\n" + rest)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_copy, caller, engine)
                    await _copy(engine, caller)
                    tasks.cancel_scope.cancel()


async def _head(caller: ByteStream) -> tuple[bytes, bytes]:
    """The head without its last empty line, and what came of the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await caller.receive()
        assert len(data) < _HEAD_BYTES
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines), rest


async def _fail(caller: ByteStream, fault: Fault) -> None:
    if fault.hang:
        await anyio.sleep_forever()
    body = json.dumps({"message": fault.words}).encode()
    head = f"HTTP/1.1 {fault.status} Fault\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await caller.send(head.encode() + body)


async def _copy(source: ByteStream, target: ByteStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await target.send(await source.receive())
