"""A hostile server behind a port: learns no key, speaks for nobody else, holds nothing up."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.conformance.isolation.conftest import KEY, Yard
from tests.contract.speaker import Speaker, rss_bytes

pytestmark = pytest.mark.timeout(60)

_PORT = 7100
_MIB = 1 << 20

# Answers by the path; everything that it was ever sent stands in /tmp/heard.
_SERVER = """
import socket, sys, threading, time
OK = b"HTTP/1.1 200 OK\\r\\n"
API = "http://127.0.0.1:%d/v1/sandboxes" % int(sys.argv[2])
def answer(line, path):
    if path == "huge-head":
        line.sendall(OK + b"X-Long: " + b"a" * (8 << 20) + b"\\r\\nContent-Length: 0\\r\\n\\r\\n")
    elif path == "many-heads":
        line.sendall(OK + b"X: y\\r\\n" * 100000 + b"Content-Length: 0\\r\\n\\r\\n")
    elif path == "endless-head":
        line.sendall(OK)
        while True:
            line.sendall(b"X-More: " + b"a" * 4000 + b"\\r\\n")
    elif path == "smuggled":
        line.sendall(OK + b"Content-Length: 2\\r\\n\\r\\nhi" + OK
                     + b"Set-Cookie: smuggled=1\\r\\nContent-Length: 8\\r\\n\\r\\nsmuggled")
        time.sleep(2)
    elif path == "two-lengths":
        line.sendall(OK + b"Content-Length: 2\\r\\nContent-Length: 20\\r\\n\\r\\nhi" + b"x" * 18)
    elif path == "both-lengths":
        line.sendall(OK + b"Content-Length: 50\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
                     b"2\\r\\nhi\\r\\n0\\r\\n\\r\\n" + OK + b"\\r\\nsmuggled")
    elif path == "split":
        line.sendall(OK + b"X-A: b\\rSet-Cookie: split=1\\r\\nContent-Length: 0\\r\\n\\r\\n")
    elif path == "cookies":
        line.sendall(OK + b"Set-Cookie: a=1; Path=/; Domain=localhost\\r\\n"
                     b"Strict-Transport-Security: max-age=999\\r\\nClear-Site-Data: \\"*\\"\\r\\n"
                     b"Content-Length: 0\\r\\n\\r\\n")
    elif path == "to-our-api":
        line.sendall(b"HTTP/1.1 307 Go\\r\\nLocation: " + API.encode()
                     + b"\\r\\nContent-Length: 0\\r\\n\\r\\n")
    elif path == "upgrade":
        line.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n"
                     b"Connection: Upgrade\\r\\n\\r\\n" + b"x" * 1000)
    elif path == "drip":
        line.sendall(OK + b"Content-Length: 100\\r\\n\\r\\n")
        for _ in range(100):
            line.sendall(b"x")
            time.sleep(0.5)
    elif path == "head-drip":
        for byte in OK * 50:
            line.sendall(bytes([byte]))
            time.sleep(0.2)
    elif path == "endless":
        line.sendall(OK + b"Transfer-Encoding: chunked\\r\\n\\r\\n")
        while True:
            line.sendall(b"10000\\r\\n" + b"x" * 65536 + b"\\r\\n")
    elif path == "bad-chunk":
        line.sendall(OK + b"Transfer-Encoding: chunked\\r\\n\\r\\nFFFFFFFFFFFFFFFFFF\\r\\nhi")
    elif path == "noise":
        line.sendall(bytes(range(256)) * 100)
    else:
        line.sendall(OK + b"Content-Length: 5\\r\\n\\r\\nhello")
def serve(line):
    try:
        head = b""
        while b"\\r\\n\\r\\n" not in head and (piece := line.recv(65536)):
            head += piece
        with open("/tmp/heard", "ab") as heard:
            heard.write(head + b"\\n")
        answer(line, head.split(b" ")[1].decode().strip("/").partition("?")[0])
    except OSError:
        pass
    finally:
        line.close()
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
open("/tmp/serving", "w").close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def served(yard: Yard, root_box: Speaker) -> Iterator[Speaker]:
    """A sandbox whose server means harm; the daemon is well after all of it."""
    root_box.start(["python3", "-c", _SERVER, str(_PORT), str(yard.port)])
    while root_box.exec("test -e /tmp/serving")["exit_code"]:
        pass
    before = rss_bytes(yard.daemon.pid)
    yield root_box
    assert rss_bytes(yard.daemon.pid) - before < 64 * _MIB
    assert yard.http.get("/readyz").status_code == 200
    log = yard.daemon.log.read_text()
    assert "Traceback" not in log
    assert KEY not in log
    heard = root_box.exec("cat /tmp/heard")["stdout"]
    assert "GET /plain" in heard
    for part in (KEY, KEY.upper(), base64.b64encode(KEY.encode()).decode()):
        assert part not in heard
    assert "authorization" not in heard.lower()


def ask(served: Speaker, path: str, **fields: object) -> httpx.Response:
    return served.http.get(f"{served.path}/ports/{_PORT}/{path}", **fields)  # type: ignore[arg-type]


def test_a_plain_answer_comes_through_and_the_key_stays_outside(served: Speaker) -> None:
    answer = ask(served, "plain")
    assert (answer.status_code, answer.text) == (200, "hello")
    assert answer.headers["content-security-policy"] == "sandbox"


@pytest.mark.parametrize(
    "path",
    [
        "huge-head",
        "many-heads",
        "endless-head",
        "two-lengths",
        "both-lengths",
        "bad-chunk",
        "noise",
    ],
)
def test_what_is_no_fair_answer_is_refused_soon_and_by_name(served: Speaker, path: str) -> None:
    start = time.monotonic()
    try:
        answer = ask(served, path)
    except httpx.RemoteProtocolError:
        assert path == "bad-chunk"  # its head had been passed on
    else:
        assert answer.status_code in {502, 503, 504}, answer.text[:300]
        assert answer.headers["content-type"] == "application/problem+json"
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("path", ["smuggled", "split"])
def test_nothing_is_smuggled_into_an_answer_or_the_next_one(served: Speaker, path: str) -> None:
    for _ in range(3):
        try:
            answer = ask(served, path)
        except httpx.RemoteProtocolError:
            continue
        assert "smuggled" not in answer.text
        assert "set-cookie" not in answer.headers
        assert ask(served, "plain").text == "hello"


def test_cookies_and_redirects_cannot_leave_the_sandboxs_own_prefix(served: Speaker) -> None:
    answer = ask(served, "cookies")
    cookie = answer.headers.get("set-cookie", "")
    assert "domain" not in cookie.lower()
    assert not cookie or f"Path={served.path}/ports/{_PORT}" in cookie
    for name in ("strict-transport-security", "clear-site-data"):
        assert name not in answer.headers
    moved = ask(served, "to-our-api", follow_redirects=False)
    location = moved.headers.get("location", "")
    place = httpx.URL(str(served.http.base_url)).join(location)
    assert not location or place.path.startswith(f"{served.path}/ports/{_PORT}"), location


def test_an_upgrade_that_nobody_asked_for_opens_no_line(served: Speaker) -> None:
    answer = ask(served, "upgrade")
    assert answer.status_code == 502


def test_an_endless_answer_costs_what_its_reader_takes(served: Speaker) -> None:
    url = f"{served.path}/ports/{_PORT}/endless"
    with served.http.stream("GET", url) as answer:
        taken = 0
        for piece in answer.iter_raw():
            taken += len(piece)
            if taken > 4 * _MIB:
                break
    assert ask(served, "plain").text == "hello"


def test_slow_servers_hold_up_nobody_else(yard: Yard, served: Speaker) -> None:
    with ExitStack() as held:
        for number in range(20):
            line = held.enter_context(socket.create_connection(("127.0.0.1", yard.port), 10))
            path = "drip" if number % 2 else "head-drip"
            head = f"GET {served.path}/ports/{_PORT}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            line.sendall(f"{head}Authorization: Bearer {KEY}\r\n\r\n".encode())
        start = time.monotonic()
        assert ask(served, "plain").text == "hello"
        assert time.monotonic() - start < 5


def test_a_port_of_the_guests_or_the_daemons_own_is_no_way_in(yard: Yard, served: Speaker) -> None:
    """Ports are the sandbox's: what listens on the machine under the same number is not reached."""
    answer = served.http.get(f"{served.path}/ports/{yard.port}/v1/sandboxes")
    assert answer.status_code in {502, 503}, answer.text
    assert "sandboxes" not in json.dumps(answer.json().get("details"))
    assert not Path("/tmp/heard").exists()
