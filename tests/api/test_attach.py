"""The `attach` WebSocket as its callers have it, over real HTTP: who comes in, frames, closes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.daemon import run_daemon

CONFIG = '[templates.one]\nimage = "host"\npool = {ready = 0, max = 4}\n'
KEY = {"Authorization": "Bearer alice-secret-key"}


def lease(http: httpx.Client) -> str:
    """The id of a new sandbox of a daemon without keys."""
    identity: str = http.post("/v1/sandboxes", json={"template": "one"}).json()["id"]
    return identity


def start(http: httpx.Client, sandbox: str, cmd: str | list[str], **fields: Any) -> str:
    """Start a command with its input open; where to attach to it."""
    body = {"cmd": cmd, "stdin_open": True, "detach": True, **fields}
    exec_id = http.post(f"{sandbox}/execs", json=body).json()["exec_id"]
    return f"{sandbox}/execs/{exec_id}/attach"


@contextmanager
def attached(
    url: str, path: str, *, headers: dict[str, str] | None = None, **more: Any
) -> Iterator[ClientConnection]:
    """A connected reader."""
    target = url.replace("http", "ws", 1) + path
    headers = KEY if headers is None else headers
    with connect(
        target, additional_headers=headers, compression=None, max_size=None, **more
    ) as socket:
        yield socket


def refused(url: str, path: str, **more: Any) -> httpx.Response:
    """The answer of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as caught, attached(url, path, **more):
        pass
    told = caught.value.response
    headers = [(name, value) for name, value in told.headers.raw_items()]
    return httpx.Response(told.status_code, headers=headers, content=bytes(told.body or b""))


def output(socket: ClientConnection, count: int, *, kind: int = 1) -> bytes:
    """So many bytes of one stream."""
    data = b""
    while len(data) < count:
        frame = socket.recv(10)
        assert isinstance(frame, bytes)
        assert frame[0] == kind, frame
        data += frame[1:]
    return data


def told(socket: ClientConnection) -> dict[str, Any]:
    """The next frame, which is JSON."""
    frame = socket.recv(10)
    assert isinstance(frame, bytes)
    assert frame[0] == 3, frame
    said: dict[str, Any] = json.loads(frame[1:])
    return said


def closed(socket: ClientConnection) -> int | None:
    """The code that it closes with, after whatever still comes."""
    while True:
        try:
            socket.recv(10)
        except ConnectionClosed as error:
            return None if error.rcvd is None else error.rcvd.code


def test_input_comes_back_as_output_and_the_end_is_told(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat; echo oops >&2; exit 3")
    with attached(url, path) as socket:
        socket.send(b"\0hello")
        assert output(socket, 5) == b"hello"
        socket.send(b"\0")
        assert output(socket, 5, kind=2) == b"oops\n"
        ended = told(socket)["exit"]
        assert (ended["outcome"], ended["exit_code"], ended["stdout_bytes"]) == ("exited", 3, 5)
        assert "stdout" not in ended
        assert closed(socket) == 1000


def test_it_replays_from_byte_offsets_also_after_the_end(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "echo hello; echo world >&2")
    with attached(url, path) as socket:
        assert closed(socket) == 1000
    with attached(url, f"{path}?stdout=3&stderr=4") as socket:
        frames = {frame[0]: frame[1:] for frame in (socket.recv(10), socket.recv(10))}
        assert frames == {1: b"lo\n", 2: b"d\n"}
        assert "exit" in told(socket)


def test_what_was_not_kept_is_told_as_a_gap(url: str, alice: httpx.Client, sandbox: str) -> None:
    size = 100_000
    command = f"head -c {size} /dev/zero"
    path = start(alice, sandbox, command, output_limit_bytes=2048, stdin_open=False)
    alice.get(path.removesuffix("/attach"), params={"wait_s": 10})
    with attached(url, path) as socket:
        at, gaps = 0, 0
        while True:
            frame = socket.recv(10)
            if frame[0] == 1:
                at += len(frame) - 1
            elif "gap" in (said := json.loads(frame[1:])):
                assert said["gap"] == {
                    "stream": "stdout",
                    "offset": at,
                    "bytes": said["gap"]["bytes"],
                }
                at += said["gap"]["bytes"]
                gaps += 1
            else:
                break
        assert (at, gaps) == (size, 1)


def test_several_attach_and_each_reads_all_and_may_write(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat")
    with attached(url, path) as one, attached(url, path) as other:
        one.send(b"\0from one,")
        assert output(one, 9) == output(other, 9) == b"from one,"
        other.send(b"\0from the other")
        assert output(one, 14) == output(other, 14) == b"from the other"
    with attached(url, path) as late:
        assert output(late, 23) == b"from one,from the other"


def test_input_at_an_offset_is_taken_once(url: str, alice: httpx.Client, sandbox: str) -> None:
    path = start(alice, sandbox, "cat")
    with attached(url, f"{path}?stdin=0") as socket:
        socket.send(b"\0abc")
        assert output(socket, 3) == b"abc"
    with attached(url, f"{path}?stdin=1&stdout=3") as socket:
        socket.send(b"\0bcde")
        assert output(socket, 2) == b"de"
    with attached(url, f"{path}?stdin=9&stdout=5") as socket:
        socket.send(b"\0too far")
        assert told(socket)["error"]["details"]["offset"] == 5
        assert closed(socket) == 4409


def test_a_signal_reaches_the_command_and_one_that_is_none_is_told(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, ["sleep", "60"])
    with attached(url, path) as socket:
        socket.send(b'\3{"signal": "NOSUCH"}')
        assert told(socket)["error"]["code"] == "bad_request"
        socket.send(b'\3{"resize": {"rows": 10, "cols": 20}}')
        assert told(socket)["error"]["code"] == "conflict"  # it has no terminal
        socket.send(b'\3{"signal": "SIGTERM"}')
        assert told(socket)["exit"]["signal"] == "TERM"
        assert closed(socket) == 1000


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("text", 1003),
        (b"", 4422),
        (b"\7what", 4422),
        (b"\1not yours", 4422),
        (b"\3no json", 4422),
        (b"\3[]", 4422),
        (b'\3{"sigal": "INT"}', 4422),
        (b'\3{"resize": {"rows": 0, "cols": 1}}', 4422),
        (b"\0" + bytes((1 << 20) + 1), 1009),
    ],
)
def test_frames_that_are_none_close_it_and_the_command_runs_on(
    url: str, alice: httpx.Client, sandbox: str, frame: str | bytes, code: int
) -> None:
    path = start(alice, sandbox, "cat")
    with attached(url, path) as socket:
        socket.send(frame)
        if code == 4422:
            assert told(socket)["error"]["status"] == 422
        assert closed(socket) == code
    assert alice.get(path.removesuffix("/attach")).json()["state"] == "running"


def test_a_lease_that_ends_closes_with_4410_and_says_its_end(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat")
    with attached(url, path) as socket:
        alice.delete(sandbox)
        error = told(socket)["error"]
        assert (error["code"], error["details"]["end"]["reason"]) == ("lease_ended", "released")
        assert closed(socket) == 4410
    answer = refused(url, path)
    assert (answer.status_code, answer.json()["code"]) == (410, "lease_ended")


def test_who_may_not_come_in_is_told_before_the_upgrade(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat")
    for status, where, headers in (
        (401, path, {}),
        (401, path, {"Authorization": "Bearer nope"}),
        (404, path, {"Authorization": "Bearer bob-secret-key"}),
        (404, f"{sandbox}/execs/nothing/attach", KEY),
        (404, "/v1/sandboxes/sbx-nothing/execs/x/attach", KEY),
        (404, "/v1/nowhere", KEY),
        (422, f"{path}?stdout=-1", KEY),
        (422, f"{path}?stdout={10**30}", KEY),
        (422, f"{path}?offset=0", KEY),
        (401, "/s/no-token/execs/x/attach", {}),
    ):
        answer = refused(url, where, headers={**headers, "X-Request-ID": "mine"})
        assert answer.status_code == status, (where, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"


def test_a_plain_get_is_told_that_this_is_a_websocket(alice: httpx.Client, sandbox: str) -> None:
    answer = alice.get(start(alice, sandbox, "cat"))
    assert (answer.status_code, answer.json()["code"]) == (426, "bad_request")


def test_a_token_in_the_path_attaches_and_one_that_only_reads_types_nothing(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat")
    tokens = {
        rights: alice.post(f"{sandbox}/tokens", json={"rights": rights}).json()["token"]
        for rights in ("use", "read")
    }
    rest = path.removeprefix(sandbox)
    with attached(url, f"/s/{tokens['use']}{rest}", headers={"X-Request-ID": "mine"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "mine"
        socket.send(b"\0typed")
        assert output(socket, 5) == b"typed"
    for frame in (b"\0x", b"\0", b'\3{"signal": "KILL"}'):
        with attached(url, f"/s/{tokens['read']}{rest}", headers={}) as socket:
            assert output(socket, 5) == b"typed"
            socket.send(frame)
            assert told(socket)["error"]["code"] == "forbidden"
            assert closed(socket) == 4403
    assert alice.get(path.removesuffix("/attach")).json()["stdout"] == "typed"


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_dropped_and_the_command_runs_on(tmp_path: Path) -> None:
    with (
        run_daemon(tmp_path, backend="local", config=CONFIG) as daemon,
        httpx.Client(base_url=daemon.url) as http,
    ):
        sandbox = f"/v1/sandboxes/{lease(http)}"
        path = start(http, sandbox, ["cat", "/dev/zero"])
        with attached(daemon.url, path, headers={}, max_queue=1, ping_interval=None):
            due = time.monotonic() + 90
            while 'sandboxd_detached_total{code="4408"} 1.0' not in http.get("/metrics").text:
                assert time.monotonic() < due
                time.sleep(0.5)
        exec_path = path.removesuffix("/attach")
        assert http.get(exec_path).json()["state"] == "running"
        assert http.post(f"{exec_path}/signal", json={"signal": "KILL"}).json()["delivered"]


def test_attached_readers_are_counted_and_never_by_name(
    url: str, alice: httpx.Client, sandbox: str
) -> None:
    path = start(alice, sandbox, "cat")
    with attached(url, path) as socket:
        assert "\nsandboxd_attached 1.0\n" in alice.get("/metrics").text
        socket.send("text")
        assert closed(socket) == 1003
    metrics = alice.get("/metrics").text
    assert "\nsandboxd_attached 0.0\n" in metrics
    assert 'sandboxd_detached_total{code="1003"}' in metrics
    assert sandbox.rpartition("/")[2] not in metrics


def test_attaching_counts_as_use(alice: httpx.Client, url: str, sandbox: str) -> None:
    path = start(alice, sandbox, ["true"])
    alice.get(path.removesuffix("/attach"), params={"wait_s": 10})
    path = start(alice, sandbox, "cat")
    assert alice.get(sandbox).json()["idle_expires_at"] is not None
    with attached(url, path):
        assert alice.get(sandbox).json()["idle_expires_at"] is None


def test_a_daemon_that_stops_says_so_and_pages_of_other_sites_stay_out(tmp_path: Path) -> None:
    with run_daemon(tmp_path, config=CONFIG) as daemon:
        with httpx.Client(base_url=daemon.url) as http:
            path = start(http, f"/v1/sandboxes/{lease(http)}", "cat")
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert refused(daemon.url, path, headers=headers).status_code == 403
        with attached(daemon.url, path, headers={"Origin": "http://localhost:3000"}) as page:
            page.send(b"\0hello")
            assert output(page, 5) == b"hello"
        socket = connect(daemon.url.replace("http", "ws", 1) + path, compression=None)
    with socket:
        assert closed(socket) == 1012
    assert "Traceback" not in daemon.log.read_text()
    assert "uvicorn" not in daemon.log.read_text()
