"""The way from inside to the daemon: ports on which the guest listens for it."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import TaskGroup

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestStream, Listener
from sandboxd.model.command import Command
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import command, end_of, run, start
from tests.conformance.guest.test_ports import echo_server, everything, listening

SEND = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(sys.stdin.buffer.read())
line.shutdown(1)
while data := line.recv(65536):
    sys.stdout.buffer.write(data)
"""


def send_to(backend: Backend, port: int, data: bytes) -> Command:
    """A command that sends that to a port inside and prints the answer."""
    if backend.capabilities().programs != "any":
        return command("tcp-send", str(port), stdin=data)
    return command("python3", "-c", SEND, str(port), stdin=data)


async def listen(guest: Guest, *listeners: Listener) -> dict[str, Listener]:
    """Set the list; gives what became of it by name."""
    with anyio.fail_after(10):
        return {said.name: said for said in await guest.set_listeners(listeners)}


async def test_connection_from_inside_is_accepted_and_answered(
    backend: Backend, guest: Guest
) -> None:
    out = (await listen(guest, Listener("out")))["out"]
    assert out.port > 0
    exec_id = await start(guest, send_to(backend, out.port, b"question"))
    with anyio.fail_after(10):
        name, stream = await guest.accept()
        async with stream:
            assert name == "out"
            assert await everything(stream) == b"question"
            await stream.send(b"answer")
            await stream.send_eof()
    assert (await end_of(guest, exec_id)).stdout.head == b"answer"


async def test_each_connection_goes_to_one_of_those_who_wait(
    backend: Backend, guest: Guest
) -> None:
    said = await listen(guest, Listener("a"), Listener("b"))
    got: list[str] = []

    async def serve() -> None:
        name, stream = await guest.accept()
        async with stream:
            got.append(f"{name}:{(await everything(stream)).decode()}")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(serve)
            await send_all(backend, guest, group, said)
    assert sorted(got) == [f"{name}:{number}" for name in "ab" for number in range(5)]


async def send_all(
    backend: Backend, guest: Guest, group: TaskGroup, said: dict[str, Listener]
) -> None:
    """Five connections to each of the listeners."""
    for listener in said.values():
        for number in range(5):
            order = send_to(backend, listener.port, str(number).encode())
            group.start_soon(run, guest, order)


async def test_list_replaces_the_list_and_keeps_what_stays(backend: Backend, guest: Guest) -> None:
    first = await listen(guest, Listener("stays"), Listener("goes"))
    second = await listen(guest, Listener("stays", first["stays"].port), Listener("comes"))
    assert second["stays"] == first["stays"]
    again = await listen(guest, Listener("stays"), Listener("comes"))  # a daemon that came anew
    assert again == second
    gone = await run(guest, send_to(backend, first["goes"].port, b"x"))
    assert gone.exit_code == 1
    assert await listen(guest) == {}
    gone = await run(guest, send_to(backend, second["stays"].port, b"x"))
    assert gone.exit_code == 1


async def test_port_that_is_taken_inside_is_told(backend: Backend, guest: Guest) -> None:
    async with listening(guest, *echo_server(backend)) as port:
        said = await listen(guest, Listener("taken", port), Listener("free"))
    assert (said["taken"].error, said["free"].error) == ("in_use", "")


@pytest.mark.parametrize(
    "listeners",
    [
        [Listener("")],
        [Listener("a b")],
        [Listener("a", 65536)],
        [Listener("a", -1)],
        [Listener("a"), Listener("a", 1)],
    ],
)
async def test_impossible_lists_are_refused(guest: Guest, listeners: list[Listener]) -> None:
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.set_listeners(listeners)
    assert refused.value.code is ErrorCode.BAD_REQUEST


async def test_wait_that_is_given_up_takes_no_connection(backend: Backend, guest: Guest) -> None:
    out = (await listen(guest, Listener("out")))["out"]
    with anyio.fail_after(20):
        for number in range(5):
            with anyio.move_on_after(0.05):
                await guest.accept()
                raise AssertionError("nobody has called")
            data = str(number).encode()
            exec_id = await start(guest, send_to(backend, out.port, data))
            _, stream = await guest.accept()
            async with stream:
                assert await everything(stream) == data
            await end_of(guest, exec_id)


async def test_connection_outlives_its_listener(backend: Backend, guest: Guest) -> None:
    out = (await listen(guest, Listener("out")))["out"]
    exec_id = await start(guest, send_to(backend, out.port, b"question"))
    with anyio.fail_after(10):
        stream: GuestStream
        _, stream = await guest.accept()
        await listen(guest)
        async with stream:
            assert await everything(stream) == b"question"
            await stream.send(b"late")
    assert (await end_of(guest, exec_id)).stdout.head == b"late"
