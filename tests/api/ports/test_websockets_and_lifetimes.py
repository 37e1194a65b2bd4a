"""WebSockets through a port, and what becomes of all that is open as leases and daemons end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support.daemon import RunningDaemon, run_daemon
from tests.support.ports import ALICE, MIB, PORT, problem, raw, serving, token, until, websocket


def test_messages_of_all_kinds_and_sizes_come_back(daemon: RunningDaemon, inside: str) -> None:
    protocols = [Subprotocol("one"), Subprotocol("two")]
    with websocket(daemon, f"{inside}/ws", subprotocols=protocols) as opened:
        assert opened.subprotocol == "two"
        assert opened.response is not None
        assert opened.response.headers["set-cookie"] == f"w=1; Path={inside}/"
        assert opened.response.headers["x-request-id"].startswith("req-")
        for message in ("", "text €", b"", b"\0\xff" * 1000, b"x" * (8 * MIB)):
            opened.send(message)
            assert opened.recv(10) == message
        assert opened.ping(b"are you there").wait(10)
        opened.send(iter([b"in ", b"three ", b"frames"]))
        assert opened.recv(10) == b"in three frames"
        opened.close(4321, "enough")
    assert opened.close_code == 4321


def test_a_caller_that_reads_nothing_is_held_back(daemon: RunningDaemon, inside: str) -> None:
    handshake = (
        f"GET {inside}/ws HTTP/1.1",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    frame = b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + b"x" * MIB
    with raw(daemon, *handshake) as connection:
        assert connection.recv(12) == b"HTTP/1.1 101"
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.sendall(frame * 64)


def test_the_servers_close_code_is_passed_on(daemon: RunningDaemon, inside: str) -> None:
    with websocket(daemon, f"{inside}/ws") as opened:
        opened.send("close 4007")
        with pytest.raises(ConnectionClosed):
            opened.recv(10)
        assert (opened.close_code, opened.close_reason) == (4007, "as asked")


def test_a_server_that_vanishes_is_a_cut_and_no_close(daemon: RunningDaemon, inside: str) -> None:
    with websocket(daemon, f"{inside}/ws") as opened:
        opened.send("vanish")
        with pytest.raises(ConnectionClosed):
            opened.recv(10)
        assert opened.close_code == 1006


def test_a_page_with_a_token_opens_a_websocket(
    daemon: RunningDaemon, alice: httpx.Client, shared: str
) -> None:
    path = f"{token(alice, shared)}/ports/{PORT}/ws"
    origin = "https://app.example"
    with websocket(daemon, path, additional_headers={}, origin=origin) as opened:
        opened.send("hi")
        assert opened.recv(10) == "hi"


def test_what_is_open_is_use(alice: httpx.Client, daemon: RunningDaemon) -> None:
    with serving(alice, idle_timeout_s=300) as sandbox:

        def idle_at() -> float | None:
            at: float | None = alice.get(sandbox).json()["idle_expires_at"]
            return at

        until(lambda: idle_at() is not None)
        with alice.stream("GET", f"{sandbox}/ports/{PORT}/events"):
            assert idle_at() is None
        until(lambda: idle_at() is not None)
        with websocket(daemon, f"{sandbox}/ports/{PORT}/ws"):
            assert idle_at() is None
        until(lambda: idle_at() is not None)


@pytest.mark.parametrize("name", ["endless", "endless?old", "events"])
def test_a_release_cuts_answers_and_never_ends_them_short(alice: httpx.Client, name: str) -> None:
    with serving(alice) as sandbox:
        with alice.stream("GET", f"{sandbox}/ports/{PORT}/{name}") as answer:
            pieces = answer.iter_raw()
            next(pieces)
            with httpx.Client(base_url=alice.base_url, headers=ALICE) as other:
                other.delete(sandbox)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in pieces:
                    pass
        status, code, body = problem(alice.get(f"{sandbox}/ports/{PORT}/echo"))
        assert (status, code) == (410, "lease_ended")
        assert body["details"]["end"]["reason"] == "released"


def test_a_release_answers_who_waits_for_an_answer(alice: httpx.Client) -> None:
    with serving(alice) as sandbox, httpx.Client(base_url=alice.base_url, headers=ALICE) as other:
        head = (f"GET {sandbox}/ports/{PORT}/read-nothing HTTP/1.1",)
        with raw(RunningDaemon(str(alice.base_url).rstrip("/"), 0, Path()), *head) as connection:
            until(lambda: other.get(sandbox).json()["idle_expires_at"] is None)
            other.delete(sandbox)
            assert connection.recv(1000).startswith(b"HTTP/1.1 410 ")


def test_a_release_closes_websockets_with_4410(daemon: RunningDaemon, alice: httpx.Client) -> None:
    with serving(alice) as sandbox, websocket(daemon, f"{sandbox}/ports/{PORT}/ws") as opened:
        opened.send("hi")
        assert opened.recv(10) == "hi"
        alice.delete(sandbox)
        with pytest.raises(ConnectionClosed):
            opened.recv(10)
        assert (opened.close_code, opened.close_reason) == (4410, "lease_ended")


def test_no_goodbye_is_put_into_an_unfinished_frame(
    daemon: RunningDaemon, alice: httpx.Client
) -> None:
    with (
        serving(alice) as sandbox,
        websocket(daemon, f"{sandbox}/ports/{PORT}/ws?half") as opened,
    ):
        alice.delete(sandbox)
        with pytest.raises(ConnectionClosed):
            opened.recv(10)
        assert opened.close_code == 1006


def test_a_daemon_that_stops_tells_websockets_and_cuts_streams(tmp_path: Path) -> None:
    config = '[templates.python]\nimage = "host"\n'
    with ExitStack() as stack:
        with run_daemon(tmp_path, backend="local", config=config) as stopping:  # within 10 s
            http = stack.enter_context(httpx.Client(base_url=stopping.url))
            with serving(http, then_gone=True) as sandbox:
                path = f"{sandbox}/ports/{PORT}"
                opened = stack.enter_context(websocket(stopping, f"{path}/ws"))
                events = stack.enter_context(http.stream("GET", f"{path}/events")).iter_raw()
                next(events)
        with pytest.raises(ConnectionClosed):
            opened.recv(10)
        assert opened.close_code == 1012
        with pytest.raises(httpx.RemoteProtocolError):
            next(events)
    assert "Traceback" not in stopping.log.read_text()
