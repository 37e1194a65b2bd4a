"""Ports inside as their callers have them: a daemon on real sandboxes, a server inside that behaves
and misbehaves by path, plain HTTP and WebSockets from outside.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.daemon import RunningDaemon, run_daemon

PROGRAM = Path(__file__).parent.parent / "support" / "port_program.py"
CONFIG = """
[server]
api_keys = [{name = "alice", key = "alice-secret-key"}, {name = "bob", key = "bob-secret-key"}]

[templates.python]
image = "host"
pool = {ready = 2, max = 20}

[templates.trusted]
image = "host"
trusted_ports = true
pool = {ready = 0, max = 4}
"""
PORT = 8000
ALICE = {"Authorization": "Bearer alice-secret-key"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("ports")
    with run_daemon(folder, backend="local", config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def alice(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.url, headers=ALICE, timeout=15) as client:
        yield client


@pytest.fixture(scope="module")
def anybody(daemon: RunningDaemon) -> Iterator[httpx.Client]:
    """A caller without a key."""
    with httpx.Client(base_url=daemon.url, timeout=15) as client:
        yield client


@contextmanager
def serving(
    http: httpx.Client, template: str = "python", *, then_gone: bool = False, **terms: Any
) -> Iterator[str]:
    """The path of a sandbox whose server listens. then_gone: its daemon releases it at its end."""
    order = {"template": template, "files": {"/tmp/server.py": {"text": PROGRAM.read_text()}}}
    sandbox = f"/v1/sandboxes/{http.post('/v1/sandboxes', json={**order, **terms}).json()['id']}"
    try:
        cmd = ["python3", "/tmp/server.py", str(PORT)]
        http.post(f"{sandbox}/execs", json={"cmd": cmd, "detach": True}).raise_for_status()
        until(lambda: http.get(f"{sandbox}/ports/{PORT}/").status_code == 200)
        yield sandbox
    finally:
        if not then_gone:
            http.delete(sandbox)


@pytest.fixture(scope="module")
def shared(alice: httpx.Client) -> Iterator[str]:
    """One sandbox for all that leave it as it was."""
    with serving(alice) as sandbox:
        yield sandbox


@pytest.fixture
def inside(shared: str) -> str:
    """Where the shared server is."""
    return f"{shared}/ports/{PORT}"


def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    due = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < due, "it never came true"
        time.sleep(0.02)


def told(response: httpx.Response) -> dict[str, Any]:
    """What the server inside heard."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def problem(response: httpx.Response) -> tuple[int, str, dict[str, Any]]:
    body = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, body["code"], body


def token(http: httpx.Client, sandbox: str, rights: str = "use") -> str:
    """The address of a sandbox with a token in it."""
    minted: str = http.post(f"{sandbox}/tokens", json={"rights": rights}).json()["token"]
    return f"/s/{minted}"


@contextmanager
def websocket(daemon: RunningDaemon, path: str, **more: Any) -> Iterator[ClientConnection]:
    url = daemon.url.replace("http", "ws", 1) + path
    more = {"compression": None, "max_size": None, "additional_headers": ALICE, **more}
    with connect(url, **more) as opened:
        yield opened


def refused_status(daemon: RunningDaemon, path: str, **more: Any) -> tuple[int, bytes]:
    """Status and body of the answer to a handshake that is refused."""
    with pytest.raises(InvalidStatus) as caught, websocket(daemon, path, **more):
        pass
    return caught.value.response.status_code, bytes(caught.value.response.body or b"")


@contextmanager
def raw(daemon: RunningDaemon, *lines: str) -> Iterator[socket.socket]:
    """A connection on which a head was sent."""
    parts = urlsplit(daemon.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        head = [*lines, f"Host: {parts.netloc}", "Authorization: Bearer alice-secret-key", "", ""]
        connection.sendall("\r\n".join(head).encode())
        yield connection


# ------------------------------------------------------------------------------------- what passes


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"])
def test_methods_paths_queries_and_bodies_pass_as_they_are(
    alice: httpx.Client, inside: str, method: str
) -> None:
    body = b"" if method in {"GET", "OPTIONS"} else b"{,]" * 1000
    rest = "/echo/a%2Fb//c/%E2%82%AC?x=%20&y=1&y=2"
    heard = told(alice.request(method, inside + rest, content=body))
    assert (heard["method"], heard["target"]) == (method, rest)
    assert heard["digest"] == hashlib.sha256(body).hexdigest()


def test_large_bodies_pass_with_a_length_and_in_chunks(alice: httpx.Client, inside: str) -> None:
    body = bytes(range(256)) * (32 * MIB // 256)
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    for content in (body, pieces):
        heard = told(alice.post(f"{inside}/echo", content=content))
        assert heard["digest"] == hashlib.sha256(body).hexdigest()


def test_our_key_stays_outside_and_the_applications_own_gets_inside(
    alice: httpx.Client, anybody: httpx.Client, shared: str, inside: str
) -> None:
    heard = told(alice.get(f"{inside}/echo", headers={"X-Forwarded-For": "203.0.113.9"}))
    said = json.dumps(heard)
    assert "alice-secret-key" not in said and "203.0.113.9" not in said
    below = token(alice, shared)
    for carried in ({"Authorization": "Bearer of-the-app"}, {"Authorization": "Basic eDp5"}):
        heard = told(anybody.get(f"{below}/ports/{PORT}/echo", headers=carried))
        assert ["authorization", carried["Authorization"]] in heard["headers"]
    for ours in (ALICE["Authorization"], f"Bearer {below[3:]}"):
        heard = told(anybody.get(f"{below}/ports/{PORT}/echo", headers={"Authorization": ours}))
        assert "authorization" not in dict(heard["headers"])


def test_a_token_in_the_path_is_not_known_inside(
    anybody: httpx.Client, alice: httpx.Client, daemon: RunningDaemon, shared: str
) -> None:
    below = token(alice, shared)
    page = f"{daemon.url}{below}/ports/{PORT}/page"
    heard = told(anybody.get(f"{below}/ports/{PORT}/echo", headers={"Referer": page}))
    assert below[3:] not in json.dumps(heard)
    assert dict(heard["headers"])["referer"] == f"http://localhost:{PORT}/page"


def test_answers_are_sandboxed_unless_the_template_trusts_its_ports(
    alice: httpx.Client, inside: str
) -> None:
    assert alice.get(f"{inside}/echo").headers["content-security-policy"] == "sandbox"
    with serving(alice, "trusted") as sandbox:
        answer = alice.get(f"{sandbox}/ports/{PORT}/echo")
        assert "content-security-policy" not in answer.headers


def test_the_prefix_itself_moves_to_its_slash(alice: httpx.Client, inside: str) -> None:
    answer = alice.get(f"{inside}?x=1")
    assert (answer.status_code, answer.headers["location"]) == (308, f"{PORT}/?x=1")
    assert told(alice.get(f"{inside}?x=1", follow_redirects=True))["target"] == "/?x=1"


def test_redirects_and_cookies_stay_below_the_prefix(alice: httpx.Client, inside: str) -> None:
    answer = alice.get(f"{inside}/moved")
    assert answer.headers["location"] == f"{inside}/echo?moved"
    assert answer.headers["set-cookie"] == f"a=1; Path={inside}/"
    assert told(alice.get(f"{inside}/moved", follow_redirects=True))["target"] == "/echo?moved"


def test_headers_of_one_hop_end_at_us(alice: httpx.Client, inside: str) -> None:
    answer = alice.get(f"{inside}/hop")
    assert answer.headers["x-end"] == "1"
    assert not {"x-hop", "keep-alive", "connection"} & set(answer.headers)
    heard = told(alice.get(f"{inside}/echo", headers={"Connection": "X-Mine", "X-Mine": "1"}))
    assert "x-mine" not in dict(heard["headers"])


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("old", 200, b"old and short"),
        ("lines", 200, b"no reason, no length"),
        ("none", 204, b""),
        ("same", 304, b""),
        ("trailers", 200, b"hi"),
        ("hints", 200, b"hi"),
        ("denied", 403, b"not you"),
    ],
)
def test_odd_but_whole_answers_arrive(
    alice: httpx.Client, inside: str, name: str, status: int, body: bytes
) -> None:
    answer = alice.get(f"{inside}/{name}")
    assert (answer.status_code, answer.content) == (status, body)
    assert told(alice.get(f"{inside}/echo"))["size"] == 0  # the connection goes on


def test_head_has_the_length_and_no_body(alice: httpx.Client, inside: str) -> None:
    answer = alice.head(f"{inside}/length")
    assert (answer.headers["content-length"], answer.content) == ("12345", b"")
    assert told(alice.get(f"{inside}/echo"))["method"] == "GET"


# --------------------------------------------------------------------------------------- streaming


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


# ---------------------------------------------------------------------------------------- failures


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


# --------------------------------------------------------------------------------------- websockets


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


# ---------------------------------------------------------------------------------------- lifetimes


def test_what_is_open_is_use(alice: httpx.Client, daemon: RunningDaemon) -> None:
    with serving(alice, idle_timeout_s=300) as sandbox:

        def idle_at() -> float | None:
            at: float | None = alice.get(sandbox).json()["idle_expires_at"]
            return at

        assert idle_at() is not None
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
