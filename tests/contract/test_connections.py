"""Callers that go away, and a daemon that does: nothing is left over, nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, held, problem, rss_bytes
from tests.support.daemon import RunningDaemon
from tests.support.service import Service

pytestmark = pytest.mark.timeout(60)

OpenService = Callable[[], AbstractContextManager[Service]]


def errors(daemon: RunningDaemon) -> list[str]:
    """The lines of the daemon's log that tell of something broken."""
    lines = daemon.log.read_text().splitlines()
    return [line for line in lines if "Traceback" in line or '"level": "error"' in line]


def back_at(daemon: RunningDaemon, before: tuple[int, int], *, within_s: float = 30) -> None:
    eventually(
        lambda: all(n <= b + 10 for n, b in zip(held(daemon.pid), before, strict=True)),
        within_s=within_s,
        what=f"descriptors and threads are back at {before}, not {held(daemon.pid)}",
    )


@pytest.mark.requirement("HT-01")
def test_commands_of_callers_who_left_run_on_under_their_ids(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    """The policy is that a caller who goes away ends nothing."""
    sandbox.exec("true")
    before = held(daemon.pid)

    def leave(number: int) -> None:
        with (
            httpx.Client(base_url=sandbox.http.base_url, timeout=1) as hasty,
            pytest.raises(httpx.ReadTimeout),
        ):
            Speaker(hasty, sandbox.path).exec(["sleep", "600"], exec_id=f"left-{number}")

    with ThreadPoolExecutor(100) as pool:
        list(pool.map(leave, range(100)))
    found = sandbox.get("/execs", limit=1000).json()["execs"]
    running = {e["exec_id"] for e in found if e["state"] == "running"}
    assert running == {f"left-{number}" for number in range(100)}
    # What waited for them is gone: no connection, no line to the guest, no thread. And nothing
    # counts as a call in flight any more.
    back_at(daemon, before)
    assert sandbox.post("/execs/left-7/signal", {"signal": "KILL"}).json()["delivered"] is True
    assert sandbox.ended("left-7")["outcome"] == "killed"
    assert errors(daemon) == []


@pytest.mark.requirement("HT-01")
def test_calls_of_callers_who_left_are_no_use(http: httpx.Client) -> None:
    """Else the idle clock would never run out on them."""
    made = http.post("/v1/sandboxes", json={"template": "python", "idle_timeout_s": 1}).json()
    one = Speaker(http, f"/v1/sandboxes/{made['id']}")
    exec_id = one.start("sleep 3")
    with (
        httpx.Client(base_url=http.base_url, timeout=0.2) as hasty,
        pytest.raises(httpx.ReadTimeout),
    ):
        hasty.get(f"{one.path}/execs/{exec_id}/events")
    eventually(lambda: one.get().json()["end"] is not None, within_s=10, what="it ends idle")
    assert one.get().json()["end"]["reason"] == "idle"


@pytest.mark.requirement("HT-02")
def test_streams_aborted_at_any_byte_leave_nothing(daemon: RunningDaemon, sandbox: Speaker) -> None:
    """500 streams of output, files and the installation's events, and terminals."""
    sandbox.exec("truncate -s 64M zeros; true")
    sandbox.start("seq 1 100000; sleep 60", exec_id="attached")
    before, memory = held(daemon.pid), rss_bytes(daemon.pid)
    host, port = daemon.url.removeprefix("http://").rsplit(":", 1)
    chance = random.Random(2)  # noqa: S311
    order = b'{"cmd": "seq 1 100000", "timeout_s": 20}'
    asks = [
        f"POST {sandbox.path}/execs HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(order)}\r\n\r\n".encode()
        + order,
        f"GET {sandbox.path}/files?path=zeros HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"GET {sandbox.path}/files/archive?path=. HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"PUT {sandbox.path}/files?path=cut HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 1000000\r\n\r\nbegun".encode(),
        f"GET {sandbox.path}/execs/attached/attach HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode(),
        b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    most = [200_000, 200_000, 200_000, 0, 200_000, 100]  # of what each is read before the end

    def abort(number: int) -> None:
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(asks[number % len(asks)])
            left = most[number % len(asks)] and chance.randrange(most[number % len(asks)])
            while left > 0 and (piece := line.recv(min(left, 65536))):
                left -= len(piece)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(abort, range(500)))
    back_at(daemon, before)
    assert rss_bytes(daemon.pid) - memory < 64 << 20
    assert errors(daemon) == []
    assert sandbox.exec("ls -A")["stdout"] == "zeros\n"


def test_input_that_is_cut_is_taken_up_at_its_offset(
    backend: str, daemon: RunningDaemon, sandbox: Speaker
) -> None:
    exec_id = sandbox.start("wc -c", stdin_open=True)
    at = f"{sandbox.path}/execs/{exec_id}/stdin"
    taken = {1000} if backend == "local" else {0, 1000}

    def pieces() -> Iterator[bytes]:
        yield b"x" * 1000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        sandbox.http.post(at, content=pieces(), params={"offset": 0})
    # What a caller sent before his line broke may have been taken, or not: the offset says it.
    eventually(
        lambda: sandbox.http.post(at, content=b"", params={"offset": 0}).json()["offset"] in taken,
        within_s=5,
        what="what came is taken",
    )
    sandbox.http.post(at, content=b"x" * 2000, params={"offset": 0, "eof": True})
    assert sandbox.ended(exec_id)["stdout"] == "2000\n"
    assert errors(daemon) == []


_ONE_PLACE = {"template": "user", "user": "root"}  # a pool of its own, on every machine


@pytest.mark.requirement("LC-01")
def test_a_caller_who_leaves_the_queue_is_given_nothing(http: httpx.Client) -> None:
    """What comes free later is not leased to nobody."""
    http.patch("/v1/pools/user", json={"max": 1})
    holder = http.post("/v1/sandboxes", json=_ONE_PLACE).json()["id"]
    with (
        httpx.Client(base_url=http.base_url, timeout=0.3) as hasty,
        pytest.raises(httpx.ReadTimeout),
    ):
        hasty.post("/v1/sandboxes", json={**_ONE_PLACE, "run_id": "left"})
    http.delete(f"/v1/sandboxes/{holder}", params={"wait_s": 10})
    eventually(
        lambda: http.get("/v1/sandboxes?run_id=left").json()["sandboxes"] == [],
        within_s=10,
        what="nobody holds it",
    )


@pytest.mark.serial
def test_a_daemon_that_stops_answers_whoever_waits(open_service: OpenService) -> None:
    """20 waits of every kind in flight: all are answered, the daemon goes within 10 s, and what
    they waited for lives on.
    """
    with open_service() as daemon:
        with httpx.Client(base_url=daemon.url, timeout=30) as http:
            made = http.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
            one = Speaker(http, f"/v1/sandboxes/{made}")
            one.start("echo out; sleep 300", exec_id="long")
            shell = one.post("/shells", {}).json()["shell_id"]
            in_shell = {"text": "sleep 300", "exec_id": "in-shell"}
            waits = [
                lambda: one.post("/execs", {"cmd": "sleep 300", "exec_id": "waited"}),
                lambda: one.get("/execs/long", wait_s=60),
                lambda: one.get("/execs/long/output", offset=4, wait_s=60),
                lambda: one.post(f"/shells/{shell}/run", in_shell),
            ]
            with ThreadPoolExecutor(21) as pool:
                asked = [pool.submit(waits[n % 3]) for n in range(15)] + [pool.submit(waits[3])]
                streams = [pool.submit(one.events, "long") for _ in range(4)]
                eventually(
                    lambda: len(one.get("/execs").json()["execs"]) == 3, within_s=10, what="all run"
                )
                began = time.monotonic()
                stopped = pool.submit(daemon.stop)
                for answer in asked:
                    told = problem(answer.result(10), 503, "shutting_down")
                    assert (told["retry_safe"], told["fault"], told["mask"]) == (
                        False,
                        "infra",
                        True,
                    )
                    assert told["retry_after_s"] > 0
                # A stream just ends, which says: attach again.
                for stream in streams:
                    assert [event["type"] for event in stream.result(10)] == ["started", "stdout"]
                assert stopped.result(10) == 0
            assert time.monotonic() - began < 10
        daemon.start()
        with httpx.Client(base_url=daemon.url, timeout=30) as http:
            one = Speaker(http, one.path)
            for exec_id in ("long", "waited", "in-shell"):
                assert one.get(f"/execs/{exec_id}").json()["state"] == "running"


@pytest.mark.requirement("LC-13", "ST-09")
@pytest.mark.serial
def test_a_sandbox_that_is_killed_ends_every_call_into_it_as_lost(
    open_service: OpenService, first_process: Callable[[Service, str], int]
) -> None:
    """No silent end, and no Exec that looks like a failure of the command."""
    with (
        open_service() as daemon,
        httpx.Client(base_url=daemon.url, timeout=30) as http,
        ThreadPoolExecutor(3) as pool,
    ):
        made = http.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
        one = Speaker(http, f"/v1/sandboxes/{made}")
        one.start("while :; do date; sleep 0.1; done", exec_id="dates")
        waiting = pool.submit(one.post, "/execs", {"cmd": "sleep 300", "exec_id": "waiting"})
        stream = pool.submit(one.events, "dates")
        eventually(lambda: len(one.get("/execs").json()["execs"]) == 2, within_s=5, what="both run")
        os.kill(first_process(daemon, box_of(one)), signal.SIGKILL)
        told = problem(waiting.result(10), 410, "sandbox_lost")
        last = stream.result(10)[-1]
        assert (last["type"], last["problem"]["code"]) == ("error", "sandbox_lost")
        end = one.get().json()["end"]
        assert (end["reason"], end["code"]) == ("died", "sandbox_lost")
        assert told["details"]["end"] == last["problem"]["details"]["end"] == end
        # Killed from outside, without a word why: nobody knows, so it is not scored.
        assert (end["fault"], end["mask"]) == ("unknown", True)
        began = time.monotonic()
        problem(one.post("/execs", {"cmd": "true"}), 410, "sandbox_lost")
        assert time.monotonic() - began < 2


def box_of(one: Speaker) -> str:
    """The name of what a sandbox is, below its lease."""
    return str(json.loads(one.get("/logs").text.splitlines()[0])["box_id"])


def test_idle_connections_are_kept_for_five_minutes() -> None:
    from sandboxd.server import build_server  # noqa: PLC0415 - the one look behind the door

    async def app(scope: object, receive: object, send: object) -> None:
        """Nothing."""

    assert build_server(app).config.timeout_keep_alive >= 300


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_connection_is_used_again_after_300_idle_seconds(daemon: RunningDaemon) -> None:
    host, port = daemon.url.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as line:

        def ask() -> None:
            line.settimeout(5)
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            told = b""
            while not told.endswith(b"}"):
                piece = line.recv(65536)
                assert piece
                told += piece

        ask()
        line.settimeout(301)
        with pytest.raises(TimeoutError):
            line.recv(1)  # nothing, not even an end
        ask()
