"""Connections that ask for nothing, or for too much, are cut off; those that work live on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteStream
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from sandboxd import connections
from sandboxd.connections import GuardedConnection
from sandboxd.server import build_server

HELLO = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server's own loop."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "SILENT_S", 0.9)


async def slow_hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers later than a head may take."""
    await anyio.sleep(0.6)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def open_server() -> AsyncIterator[Callable[[], Awaitable[ByteStream]]]:
    """A way to connect to it."""
    config = build_server(slow_hello).config
    config.load()
    state = ServerState()
    listener = await asyncio.get_running_loop().create_server(
        lambda: GuardedConnection(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        yield lambda: anyio.connect_tcp("127.0.0.1", port)


async def read_all(stream: ByteStream) -> bytes:
    """Everything until the other end closes."""
    data = b""
    with anyio.fail_after(10):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def drip(stream: ByteStream) -> None:
    """A head that comes byte by byte, and never ends."""
    with suppress(anyio.BrokenResourceError):
        await stream.send(b"GET / HTTP/1.1\r\nx: ")
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.02)


@pytest.mark.parametrize("first", [b"", b"G", b"GET / HTTP/1.1\r\nx: y\r\n", b"\r\n"])
async def test_a_head_that_never_comes_is_not_waited_for(first: bytes) -> None:
    async with open_server() as connect, await connect() as stream:
        if first:
            await stream.send(first)
        assert await read_all(stream) == b""


async def test_a_head_that_drips_is_not_waited_for() -> None:
    async with open_server() as connect, await connect() as stream:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drip, stream)
                assert await read_all(stream) == b""
                tasks.cancel_scope.cancel()


async def test_a_head_without_end_is_refused() -> None:
    async with open_server() as connect, await connect() as stream:
        await stream.send(b"GET / HTTP/1.1\r\nx: " + b"y" * (connections.MAX_HEAD_BYTES + 1))
        assert b" 400 " in await read_all(stream)


async def test_an_answer_may_take_longer_than_a_head_and_the_connection_is_kept() -> None:
    async with open_server() as connect, await connect() as stream:
        for _ in range(2):
            await stream.send(HELLO)
            data = b""
            with anyio.fail_after(10):
                while not data.endswith(b"hi"):
                    data += await stream.receive()


async def test_bytes_of_no_request_behind_an_answer_do_not_keep_a_connection() -> None:
    async with open_server() as connect, await connect() as stream:
        await stream.send(HELLO)
        with anyio.fail_after(10):
            await stream.receive()
        await stream.send(b"\r\n")
        await read_all(stream)


async def test_whoever_comes_when_the_house_is_full_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 1)
    monkeypatch.setattr(connections, "HEAD_S", 30)
    async with open_server() as connect, await connect() as first:
        await first.send(HELLO)
        async with await connect() as second:
            assert await read_all(second) == b""
        with anyio.fail_after(10):
            assert b"200" in await first.receive()
