"""Connections that ask for nothing, or for too much, are cut off; those that work live on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteStream
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from sandboxd import connections
from sandboxd.connections import GuardedConnection
from sandboxd.server import bind, build_server
from sandboxd.wire.websocket import Message, MessageDecoder, Opcode, encode, new_key

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
    monkeypatch.setattr(connections, "FAREWELL_S", 0.3)


async def slow_hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers later than a head may take."""
    await anyio.sleep(0.6)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def open_server(
    app: ASGIApp = slow_hello, *, state: ServerState | None = None
) -> AsyncIterator[Callable[[], Awaitable[ByteStream]]]:
    """A way to connect to it. state: where its connections are counted."""
    config = build_server(app).config
    config.ws_ping_interval, config.ws_ping_timeout = 0.1, 0.4
    config.load()
    state = state or ServerState()
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


class Held:
    """A WebSocket application that takes no message until it is let go, and sees who leaves."""

    def __init__(self, *, sends: int = 0) -> None:
        self.sends = sends
        self.let_go = anyio.Event()
        self.gone = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await receive()
        await send({"type": "websocket.accept"})
        if self.sends:
            await send({"type": "websocket.send", "bytes": bytes(self.sends)})
            await send({"type": "websocket.close"})
            return
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await scope["state"]["gone"].wait()
                self.gone.set()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await self.let_go.wait()
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "bytes": message["bytes"]})
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_socket(stream: ByteStream) -> AsyncIterator[MessageDecoder]:
    """Upgrade a connection; what decodes the rest of it."""
    key = new_key()
    head = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    head += b"sec-websocket-version: 13\r\nsec-websocket-key: " + key + b"\r\n\r\n"
    await stream.send(head)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await stream.receive()
    assert b" 101 " in answer
    yield MessageDecoder(limit=1 << 24)


async def test_a_websocket_lives_longer_than_a_head_and_answers() -> None:
    app = Held()
    app.let_go.set()
    async with (
        open_server(app) as connect,
        await connect() as stream,
        open_socket(stream) as decoder,
    ):
        due = anyio.current_time() + 3 * connections.HEAD_S
        got: list[Message] = []
        with anyio.fail_after(10):
            while not any(message.opcode is Opcode.BINARY for message in got):
                got = decoder.feed(await stream.receive())
                for message in got:
                    assert message.opcode is not Opcode.CLOSE
                    if message.opcode is Opcode.PING:
                        await stream.send(encode(Opcode.PONG, message.payload))
                if anyio.current_time() > due:
                    await stream.send(encode(Opcode.BINARY, b"hello"))
        assert Message(Opcode.BINARY, b"hello") in got


async def test_a_pong_that_waits_behind_held_input_is_not_missed() -> None:
    app = Held()
    async with (
        open_server(app) as connect,
        await connect() as stream,
        open_socket(stream) as decoder,
    ):
        for _ in range(2):  # the second is not read off the line, nor what is behind it
            await stream.send(encode(Opcode.BINARY, b"x"))
        got: list[tuple[Opcode, bytes]] = []
        with anyio.fail_after(10):
            while sum(opcode is Opcode.PING for opcode, _ in got) < 4:
                for message in decoder.feed(await stream.receive()):
                    got.append(message)
                    if message.opcode is Opcode.PING:
                        await stream.send(encode(Opcode.PONG, message.payload))
            app.let_go.set()
            while sum(opcode is Opcode.BINARY for opcode, _ in got) < 2:
                got += decoder.feed(await stream.receive())
        assert not app.gone.is_set()


async def test_a_peer_that_answers_no_ping_is_cut() -> None:
    app = Held()
    async with open_server(app) as connect, await connect() as stream, open_socket(stream):
        await read_all(stream)
        with anyio.fail_after(5):
            await app.gone.wait()


async def test_an_application_that_holds_input_back_learns_that_its_peer_is_gone() -> None:
    app = Held()
    async with open_server(app) as connect:
        async with await connect() as stream, open_socket(stream):
            for _ in range(3):
                await stream.send(encode(Opcode.BINARY, b"x"))
        with anyio.fail_after(5):
            await app.gone.wait()


async def test_a_peer_that_takes_nothing_does_not_keep_the_connection_open() -> None:
    state = ServerState()
    app = Held(sends=16 << 20)
    async with (
        open_server(app, state=state) as connect,
        await connect() as stream,
        open_socket(stream),
    ):
        with anyio.fail_after(10):
            while state.connections:  # noqa: ASYNC110 - the server tells nobody
                await anyio.sleep(0.02)


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


def test_callers_whose_machine_is_gone_are_asked_for_a_sign_of_life() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            taken, _ = listener.accept()
            with taken:
                assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                idle_s, every_s, count = (
                    taken.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
    assert idle_s + every_s * count <= 120
