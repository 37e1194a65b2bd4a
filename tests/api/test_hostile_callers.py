"""Callers who mean harm, with a key and without: nothing they send stops or fools a daemon."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.daemon import run_daemon

MIB = 1 << 20


def raw(url: str, data: bytes, *, limit: int = 65536) -> bytes:
    """What a daemon answers to bytes as they are, until it closes or falls silent."""
    place = urlsplit(url)
    assert place.hostname and place.port
    with socket.create_connection((place.hostname, place.port), timeout=5) as stream:
        answer = b""
        try:
            stream.sendall(data)
            while b"\r\n\r\n" not in answer and len(answer) < limit:
                piece = stream.recv(4096)
                if not piece:
                    break
                answer += piece
        except (TimeoutError, ConnectionError):
            pass
        return answer


def memory_peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.parametrize(
    "body",
    [
        b'{"cmd": [' + b"1," * 2_000_000 + b"1]}",
        b'{"cmd": [' + b"[]," * 2_000_000 + b"1]}",
        b"{" + b",".join(b'"%d": 1' % number for number in range(300_000)) + b"}",
        b"[" * 1_000_000,
        b'{"a": ' * 500_000,
    ],
    ids=["numbers", "lists", "fields", "deep lists", "deep objects"],
)
def test_a_bomb_of_json_costs_next_to_nothing(tmp_path: Path, body: bytes) -> None:
    with run_daemon(tmp_path) as daemon, httpx.Client(base_url=daemon.url, timeout=10) as client:
        before = memory_peak(daemon.pid)
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/sandboxes", content=body, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["code"] == "bad_request"
        assert memory_peak(daemon.pid) - before < 10 * len(body) + 20 * MIB


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
        b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 60_000 + b"\r\n",
        b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, x\r\n\r\n{}",
        b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        b"GET /v1/p\xffols HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_heads_that_are_too_large_or_ambiguous_are_refused(url: str, head: bytes) -> None:
    answer = raw(url, head)
    assert answer.startswith(b"HTTP/1.1 400"), answer[:80]
    assert b"Traceback" not in answer


def test_requests_in_a_row_on_one_connection_are_each_asked_for_a_key(url: str) -> None:
    one = b"GET /v1/pools HTTP/1.1\r\nHost: x\r\n\r\n"
    with_key = (
        b"GET /v1/pools HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice-secret-key\r\n\r\n"
    )
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=5) as stream:
        stream.sendall(with_key + one + one)
        answer = b""
        while answer.count(b"HTTP/1.1 ") < 3:
            answer += stream.recv(65536)
    assert (answer.count(b"HTTP/1.1 200"), answer.count(b"HTTP/1.1 401")) == (1, 2)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/..%2f..%2fetc",
        "/v1/sandboxes/%2e%2e/%2e%2e/healthz",
        "/v1/sandboxes/%00",
        "/v1/sandboxes/%ff%fe",
        "/v1/sandboxes/a%0ab",
        "//v1/pools/",
        "/v1/pools/..%2f..",
        "/healthz/../v1/pools",
    ],
)
def test_no_path_leads_anywhere_else(alice: httpx.Client, url: str, path: str) -> None:
    request = b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    assert b" 401 " in raw(url, request + b"\r\n").split(b"\r\n")[0]
    keyed = raw(url, request + b"Authorization: Bearer alice-secret-key\r\n\r\n")
    assert b" 404 " in keyed.split(b"\r\n")[0]


@pytest.mark.parametrize("rest", ["", "/..", "/../../pools", "/%2e%2e/pools", "//", "/renew"])
def test_a_token_in_a_path_opens_no_other_path(
    alice: httpx.Client, sandbox: str, url: str, rest: str
) -> None:
    token = alice.post(f"{sandbox}/tokens", json={"rights": "use"}).json()["token"]
    for method in ("DELETE", "POST"):
        head = f"{method} /s/{token}{rest} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        status = raw(url, head.encode()).split(b" ")[1]
        assert status in {b"403", b"404", b"405"}
    assert alice.get(sandbox).json()["state"] == "leased"


@pytest.mark.parametrize(
    "authorization",
    ["Bearer", "Basic YWxpY2U6YQ==", "Bearer sbt-", "Bearer sbt-a.b", "Bearer sbo-",
     "Bearer " + "x" * 50_000, "Bearer alice-secret-ke", "Bearer alice-secret-key x"],
)  # fmt: skip
def test_whatever_is_no_key_is_no_key(url: str, authorization: str) -> None:
    answer = httpx.get(f"{url}/v1/pools", headers={"Authorization": authorization})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("field", ["wait_timeout_s", "idle_timeout_s", "grading_s", "timeout_s"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "9" * 5000])
def test_no_number_is_endless(alice: httpx.Client, field: str, value: str) -> None:
    body = f'{{"template": "python", "{field}": {value}}}'
    headers = {"Content-Type": "application/json"}
    answer = alice.post("/v1/sandboxes", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_request")


def test_a_thousand_connections_that_say_nothing_keep_nobody_out(
    alice: httpx.Client, url: str
) -> None:
    place = urlsplit(url)
    with ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(socket.create_connection((place.hostname, place.port), timeout=5))
        for _ in range(10):
            assert alice.get("/v1/pools").status_code == 200


def test_labels_of_metrics_do_not_grow_with_what_callers_say(alice: httpx.Client, url: str) -> None:
    def series() -> set[str]:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def noise(name: str) -> None:
        alice.post("/v1/sandboxes", json={"template": name})
        alice.get(f"/v1/sandboxes/{name}")
        alice.get("/v1/pools", headers={"X-Request-ID": name})
        made = alice.post("/v1/sandboxes", json={"template": "python", "labels": {name: name}})
        path = f"/v1/sandboxes/{made.json()['id']}"
        alice.post(f"{path}/execs", json={"cmd": ["true"], "exec_id": name})
        alice.delete(path)

    noise("first")
    before = series()
    for number in range(20):
        noise(f"name-{number}")
    assert {line for line in series() - before if "name-" in line} == set()
    assert len(series()) - len(before) < 30


def test_logs_hold_no_secret_and_no_line_that_a_caller_wrote(tmp_path: Path) -> None:
    config = '[log]\nformat = "plain"\n[templates.python]\nimage = "host"\n'
    line = "\n2026-01-01 [error] forged\x1b[2J"
    with run_daemon(tmp_path, config=config) as daemon:
        with httpx.Client(base_url=daemon.url, timeout=10) as client:
            made = client.post(
                "/v1/sandboxes",
                json={
                    "template": "python",
                    "env": {"E": "hush-env"},
                    "secrets": {"S": "hush-secret"},
                    "labels": {"l" + line: "hush-label" + line},
                    "files": {"f" + line: {"text": "hush-file"}},
                },
            )
            path = f"/v1/sandboxes/{made.json()['id']}"
            token = client.post(f"{path}/tokens", json={}).json()["token"]
            client.post(f"/s/{token}/execs", json={"cmd": ["cat"], "stdin": "hush-stdin"})
            client.get(f"/s/{token}/files", params={"path": "/x" + line})
            client.get(f"/s/{token[:-4]}aaaa/execs")
            client.get("/v1/pools", headers={"Authorization": "Bearer hush-key"})
            wrong = {"template": "python", "secrets": {"S": 7, "T": "hush"}}
            client.post("/v1/sandboxes", json=wrong)
            client.post("/v1/sandboxes", json={"template": "python", "workdir": "\x01" + line})
            client.post("/v1/sandboxes", json={"template": "t" + line})
            client.delete(path)
        text = daemon.log.read_text()
    assert "hush" not in text
    assert token not in text
    assert "\x1b" not in text
    assert not any(logged.startswith("2026-01-01") for logged in text.splitlines())


def test_an_answer_to_nonsense_is_json_of_ours(alice: httpx.Client) -> None:
    answer = alice.post("/v1/sandboxes", content=b"\xff\xfe", headers={"Content-Type": "text/json"})
    assert answer.status_code == 422
    assert json.loads(answer.content)["code"] == "bad_request"
