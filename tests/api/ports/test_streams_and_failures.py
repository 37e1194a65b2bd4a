"""Bodies that flow, who holds whom back, and how what goes wrong inside is told."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import RunningDaemon, run_daemon
from tests.support.ports import (
    ALICE,
    MIB,
    PORT,
    problem,
    raw,
    refused_status,
    serving,
    token,
    told,
    until,
)


def test_events_arrive_as_they_are_sent(alice: httpx.Client) -> None:
    with (
        serving(alice) as sandbox,
        alice.stream("GET", f"{sandbox}/ports/{PORT}/events") as answer,
    ):
        events = answer.iter_raw()
        assert next(events) == b"data: first\n\n"
        alice.get(f"{sandbox}/ports/{PORT}/release")
        assert b"".join(events) == b"data: second\n\n"


def test_an_answer_may_flow_while_its_request_does(daemon: RunningDaemon, inside: str) -> None:
    with raw(daemon, f"POST {inside}/duplex HTTP/1.1", "Transfer-Encoding: chunked") as connection:
        stream = connection.makefile("rb")
        for number in range(5):
            connection.sendall(b"5\r\nping%d\r\n" % number)
            if number == 0:
                assert stream.readline().startswith(b"HTTP/1.1 200")
                while stream.readline() != b"\r\n":
                    pass
            assert stream.readline() == b"5\r\n"
            assert stream.readline() == b"ping%d\r\n" % number
        connection.sendall(b"0\r\n\r\n")
        assert stream.readline() == b"0\r\n"


def test_a_slow_reader_holds_the_server_inside(alice: httpx.Client) -> None:
    with serving(alice) as sandbox:

        def state() -> dict[str, int]:
            heard: dict[str, int] = told(alice.get(f"{sandbox}/ports/{PORT}/echo"))["state"]
            return heard

        with alice.stream("GET", f"{sandbox}/ports/{PORT}/endless") as answer:
            next(answer.iter_raw())
            sent = [-1, -2, -3]
            while len(set(sent[-3:])) > 1:  # until it stands still
                time.sleep(0.1)
                sent.append(state()["sent"])
                assert sent[-1] < 64 * MIB
        until(lambda: state()["ended"] == 1)  # who goes away is told inside


def test_callers_who_leave_in_the_middle_leave_nothing_behind(
    alice: httpx.Client, daemon: RunningDaemon
) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

    with serving(alice) as sandbox:
        path = f"{sandbox}/ports/{PORT}"
        before = descriptors()
        for number in range(60):
            kind = ("endless", "events", "read-nothing")[number % 3]
            with raw(daemon, f"GET {path}/{kind} HTTP/1.1") as connection:
                if kind != "read-nothing":
                    connection.recv(1 + number * 1000)
        until(lambda: descriptors() <= before + 4)  # the guest's kept lines
        assert told(alice.get(f"{path}/echo"))["state"]["ended"] == 20
    metrics = alice.get("/metrics").text
    assert 'sandboxd_port_connections{kind="http"} 0.0' in metrics
    assert '"level": "error"' not in daemon.log.read_text()


def test_a_server_that_reads_nothing_holds_the_caller(alice: httpx.Client) -> None:
    with serving(alice) as sandbox, pytest.raises(httpx.WriteTimeout):
        alice.post(f"{sandbox}/ports/{PORT}/read-nothing", content=b"x" * (64 * MIB), timeout=1.0)


def test_an_early_answer_to_a_large_body_arrives(alice: httpx.Client, inside: str) -> None:
    answer = alice.post(f"{inside}/early", content=b"x" * (8 * MIB))
    assert (answer.status_code, answer.content) == (413, b"large")


def test_a_server_decides_whether_a_body_is_sent(daemon: RunningDaemon, inside: str) -> None:
    expecting = ("Expect: 100-continue", "Content-Length: 5")
    with raw(daemon, f"POST {inside}/early HTTP/1.1", *expecting) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with raw(daemon, f"POST {inside}/go-on HTTP/1.1", *expecting) as connection:
        stream = connection.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        connection.sendall(b"hello")
        assert stream.readline().startswith(b"HTTP/1.1 200")


def test_a_port_that_is_not_open_yet_may_be_asked_again(alice: httpx.Client, shared: str) -> None:
    answer = alice.get(f"{shared}/ports/8001/")
    status, code, body = problem(answer)
    assert (status, code, body["details"]) == (502, "conflict", {"reason": "refused", "port": 8001})
    assert (body["retry_safe"], body["fault"], body["mask"]) == (True, "agent", False)
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("name", "reason"), [("nothing", "closed"), ("ssh", "no_http"), ("unasked", "no_http")]
)
def test_a_server_that_does_not_answer_is_told_as_the_agents(
    alice: httpx.Client, inside: str, name: str, reason: str
) -> None:
    status, code, body = problem(alice.post(f"{inside}/{name}"))
    assert (status, code, body["details"]["reason"]) == (502, "conflict", reason)
    assert (body["retry_safe"], body["fault"], body["mask"]) == (False, "agent", False)


@pytest.mark.parametrize("name", ["cut", "cut-chunk"])
def test_an_answer_that_is_cut_inside_is_cut_outside(
    alice: httpx.Client, daemon: RunningDaemon, inside: str, name: str
) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        alice.get(f"{inside}/{name}")
    assert '"level": "error"' not in daemon.log.read_text()


def test_who_may_not_is_told_as_on_any_route(
    daemon: RunningDaemon, alice: httpx.Client, anybody: httpx.Client, shared: str, inside: str
) -> None:
    bob = {"Authorization": "Bearer bob-secret-key"}
    assert problem(anybody.get(f"{inside}/echo"))[:2] == (401, "unauthenticated")
    assert problem(anybody.get(f"{inside}/echo", headers=bob))[:2] == (404, "not_found")
    assert problem(alice.get("/v1/sandboxes/sbx-none/ports/80/"))[:2] == (404, "not_found")
    for port in ("0", "65536", "x"):
        assert problem(alice.get(f"{shared}/ports/{port}/"))[:2] == (422, "bad_request")
    reading = token(alice, shared, "read")
    assert told(anybody.get(f"{reading}/ports/{PORT}/echo"))["method"] == "GET"
    refused = problem(anybody.post(f"{reading}/ports/{PORT}/echo"))
    assert refused[:2] == (403, "forbidden")
    for path, headers, status in (
        (f"{reading}/ports/{PORT}/ws", {}, 403),
        (f"{inside}/ws", {}, 401),
        (f"{inside}/ws", bob, 404),
        (f"{shared}/ports/8001/ws", ALICE, 502),
    ):
        assert refused_status(daemon, path, additional_headers=headers)[0] == status
    assert refused_status(daemon, f"{inside}/denied") == (403, b"not you")


def test_a_keyless_daemon_serves_no_page_of_another_site(tmp_path: Path) -> None:
    config = '[templates.python]\nimage = "host"\n'
    with (
        run_daemon(tmp_path, backend="local", config=config) as keyless,
        httpx.Client(base_url=keyless.url) as http,
        serving(http) as sandbox,
    ):
        path = f"{sandbox}/ports/{PORT}"
        for origin in ("https://evil.example", "null"):
            refused = problem(http.post(f"{path}/echo", headers={"Origin": origin}))
            assert refused[:2] == (403, "forbidden")
            assert refused_status(keyless, f"{path}/ws", origin=origin)[0] == 403
        refused = problem(http.get(f"{path}/echo", headers={"Host": "evil.example"}))
        assert refused[:2] == (403, "forbidden")
        heard = told(http.get(f"{path}/echo", headers={"Authorization": "Bearer of-the-app"}))
        assert ["authorization", "Bearer of-the-app"] in heard["headers"]
