"""The contract's `attach`, `resize` and `tty`, as an outsider reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.contract.speaker import Speaker


@contextmanager
def attach(sandbox: Speaker, exec_id: str, **offsets: int) -> Iterator[ClientConnection]:
    """A WebSocket to that command."""
    base = str(sandbox.http.base_url).rstrip("/").replace("http", "ws", 1)
    query = httpx.QueryParams(offsets)
    target = f"{base}{sandbox.path}/execs/{exec_id}/attach?{query}"
    with connect(target, compression=None, max_size=None) as socket:
        yield socket


def take(socket: ClientConnection, until: bytes) -> bytes:
    """Standard output until it ends so."""
    data = b""
    while not data.endswith(until):
        frame = socket.recv(10)
        assert isinstance(frame, bytes)
        assert frame[:1] == b"\1", (frame, data)
        data += frame[1:]
    return data


def ended(socket: ClientConnection) -> tuple[dict[str, Any], int]:
    """The Exec that it ends with, and the code that it closes with."""
    said: dict[str, Any] = {}
    with suppress(ConnectionClosed):
        while True:
            frame = socket.recv(10)
            assert isinstance(frame, bytes)
            if frame[:1] == b"\3":
                said = json.loads(frame[1:])
    assert socket.close_code is not None
    return said.get("exit", {}), socket.close_code


def resize(socket: ClientConnection, rows: int, cols: int) -> None:
    """Another size, by a frame."""
    socket.send(b"\3" + json.dumps({"resize": {"rows": rows, "cols": cols}}).encode())


def test_a_terminal_has_its_size_right_away_and_changes_it(sandbox: Speaker) -> None:
    exec_id = sandbox.start(["sh"], tty={"rows": 40, "cols": 120}, env={"PS1": "> "})
    with attach(sandbox, exec_id) as socket:
        take(socket, b"> ")
        socket.send(b"\0stty size\n")
        assert take(socket, b"\r\n> ") == b"stty size\r\n40 120\r\n> "
        resize(socket, 50, 200)
        answer = sandbox.post(f"/execs/{exec_id}/resize", {"rows": 50, "cols": 200})
        assert answer.status_code == 200
        socket.send(b"\0stty size\n")
        assert take(socket, b"\r\n> ") == b"stty size\r\n50 200\r\n> "
        socket.send(b"\0exit 3\n")
        exit_, code = ended(socket)
        assert (exit_["outcome"], exit_["exit_code"], code) == ("exited", 3, 1000)
        assert "stdout" not in exit_


def test_sizes_that_are_none_and_commands_without_a_terminal_are_refused(
    sandbox: Speaker,
) -> None:
    for tty in ({"rows": 0, "cols": 80}, {"rows": 24}, {"rows": 24, "cols": 70_000}, "yes"):
        assert sandbox.post("/execs", {"cmd": "true", "tty": tty}).status_code == 422
    plain = sandbox.start(["sleep", "60"])
    answer = sandbox.post(f"/execs/{plain}/resize", {"rows": 10, "cols": 10})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    answer = sandbox.post("/execs/nothing/resize", {"rows": 10, "cols": 10})
    assert answer.status_code == 404


def test_keys_signals_and_a_second_reader_meet_in_one_terminal(sandbox: Speaker) -> None:
    exec_id = sandbox.start(["sh"], tty={"rows": 24, "cols": 80}, env={"PS1": "> "})
    with attach(sandbox, exec_id) as one, attach(sandbox, exec_id) as other:
        for socket in (one, other):
            take(socket, b"> ")
        one.send(b"\0sleep 60\n")
        take(other, b"sleep 60\r\n")
        other.send(b"\0\x03")
        take(other, b"> ")
        other.send(b"\0echo $?\n")
        assert b"130\r\n" in take(other, b"> ")
        one.send(b"\0exit\n")
        assert ended(one)[1] == ended(other)[1] == 1000
    with attach(sandbox, exec_id, stdout=2) as late:
        assert take(late, b"60\r\n") == b"sleep 60\r\n"


def test_a_lease_that_ends_closes_with_4410(sandbox: Speaker) -> None:
    exec_id = sandbox.start("cat", stdin_open=True)
    with attach(sandbox, exec_id) as socket:
        sandbox.http.delete(sandbox.path)
        assert ended(socket) == ({}, 4410)


@pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_000])
def test_bytes_are_exact_from_any_offset(sandbox: Speaker, size: int) -> None:
    command = f"head -c {size} /dev/urandom | tee copy"
    exec_id = sandbox.start(command, output_limit_bytes=16 << 20)
    offset = size // 3
    with attach(sandbox, exec_id, stdout=offset) as socket:
        got = b""
        while (frame := socket.recv(10))[0] == 1:
            assert isinstance(frame, bytes)
            got += frame[1:]
    assert got == sandbox.get("/files", path="copy").content[offset:]
