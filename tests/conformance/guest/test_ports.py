"""Connections to programs that listen inside."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestStream, Piece
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import command, need_any_program, run, seeded, start, until

# Each prints its port once it listens. The first sends back what comes, to as many as come.
ECHO = """
import asyncio
async def serve(reader, writer):
    while data := await reader.read(1 << 18):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, HOST, 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
HAS_IPV6 = "import socket; socket.create_server(('::1', 0), family=socket.AF_INET6)"
ONE = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
line, _ = listening.accept()
"""


@asynccontextmanager
async def listening(guest: Guest, *argv: str) -> AsyncIterator[int]:
    """Run a server inside; gives the port that it prints."""
    exec_id = await start(guest, command(*argv))
    try:
        with anyio.fail_after(10):
            async with guest.attach(exec_id) as attachment:
                said = b""
                while not said.endswith(b"\n"):
                    event = await anext(attachment)
                    assert isinstance(event, Piece) or event.seq == 1, event
                    said += event.data if isinstance(event, Piece) else b""
        yield int(said)
    finally:
        await guest.signal(exec_id, "KILL")


def echo_server(backend: Backend, host: str = "127.0.0.1") -> tuple[str, ...]:
    """The command of an echo server."""
    if backend.capabilities().programs != "any":
        return ("tcp-echo",)
    return ("python3", "-c", ECHO.replace("HOST", repr(host)))


async def everything(stream: GuestStream) -> bytes:
    """What comes, to the end."""
    pieces = []
    try:
        while True:
            pieces.append(await stream.receive())
    except anyio.EndOfStream:
        return b"".join(pieces)


async def test_port_inside_is_reached_and_each_direction_ends_by_itself(
    backend: Backend, guest: Guest
) -> None:
    async with listening(guest, *echo_server(backend)) as port:
        with anyio.fail_after(10):
            async with await guest.open_port(port) as stream:
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
                await stream.send(b" and more")
                await stream.send_eof()
                assert await everything(stream) == b" and more"


async def test_port_on_which_nobody_listens_is_refused(guest: Guest) -> None:
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.open_port(9)
    assert (refused.value.code, refused.value.status) == (ErrorCode.CONFLICT, 409)
    assert (refused.value.details or {})["reason"] == "refused"


@pytest.mark.parametrize("port", [0, 65536])
async def test_what_is_no_port_is_a_bad_request(guest: Guest, port: int) -> None:
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.open_port(port)
    assert refused.value.code is ErrorCode.BAD_REQUEST


async def test_many_connections_at_once_do_not_mix(backend: Backend, guest: Guest) -> None:
    async with listening(guest, *echo_server(backend)) as port:

        async def one(number: int) -> None:
            data = seeded(20_000 + number)
            async with await guest.open_port(port) as stream:
                await stream.send(data)
                await stream.send_eof()
                assert await everything(stream) == data

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(one, number)


async def test_server_on_ipv6_alone_is_reached(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    if (await run(guest, command("python3", "-c", HAS_IPV6))).exit_code != 0:
        pytest.skip("the sandbox has no IPv6")
    async with listening(guest, *echo_server(backend, "::1")) as port:
        with anyio.fail_after(10):
            async with await guest.open_port(port) as stream:
                await stream.send(b"six")
                assert await stream.receive() == b"six"


async def test_server_that_has_said_all_still_listens(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    text = "line.sendall(b'banner'); line.shutdown(1); open('got', 'wb').write(line.recv(99))"
    async with listening(guest, "python3", "-c", ONE + text) as port:
        with anyio.fail_after(10):
            async with await guest.open_port(port) as stream:
                assert await everything(stream) == b"banner"
                await stream.send(b"late")
                await stream.send_eof()
        await until_got(guest, b"late")


async def until_got(guest: Guest, data: bytes) -> None:
    """Wait until that is in the file `got`."""

    async def holds() -> bool:
        return (await run(guest, command("cat", "got"))).stdout.head == data

    await until(holds)


async def test_hang_up_is_seen_inside_though_nothing_moves(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    text = """
import time
assert line.recv(9) == b"x" and line.recv(9) == b""
while True:
    try:
        line.send(b"y")
    except OSError:
        break
    time.sleep(0.01)
open("got", "w").write("closed")
"""
    async with listening(guest, "python3", "-c", ONE + text) as port:
        with anyio.fail_after(10):
            stream = await guest.open_port(port)
            await stream.send(b"x")
            await stream.aclose()
        await until_got(guest, b"closed")


async def test_two_hundred_megabytes_come_back_unchanged(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    block = seeded(1 << 20)
    sent, received = hashlib.sha256(), hashlib.sha256()
    async with listening(guest, *echo_server(backend)) as port:
        with anyio.fail_after(60):
            async with await guest.open_port(port) as stream, anyio.create_task_group() as group:

                async def send() -> None:
                    for _ in range(200):
                        sent.update(block)
                        await stream.send(block)
                    await stream.send_eof()

                group.start_soon(send)
                try:
                    while True:
                        received.update(await stream.receive())
                except anyio.EndOfStream:
                    pass
    assert received.digest() == sent.digest()
