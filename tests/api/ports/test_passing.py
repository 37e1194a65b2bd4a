"""What passes to a server inside and back: methods, bodies, heads, and nothing of ours."""

from __future__ import annotations

import hashlib
import json

import httpx
import pytest

from tests.support.daemon import RunningDaemon
from tests.support.ports import ALICE, MIB, PORT, problem, raw, serving, token, told


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


def test_a_body_that_an_upgrade_swallows_is_told(alice: httpx.Client, inside: str) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "h2c"}
    assert told(alice.get(f"{inside}/echo", headers=upgrade))["size"] == 0
    refused = problem(alice.post(f"{inside}/echo", headers=upgrade, content=b"hi"))
    assert refused[0] in {400, 422} and refused[1] == "bad_request"  # by when the body comes


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_requests_in_odd_forms_are_answered(
    daemon: RunningDaemon, inside: str, version: str
) -> None:
    for target in (f"{daemon.url}{inside}/none", f"{inside}/%ff%00%zz"):
        with raw(daemon, f"GET {target} HTTP/{version}") as connection:
            assert connection.recv(11) == b"HTTP/1.1 20"


def test_head_has_the_length_and_no_body(alice: httpx.Client, inside: str) -> None:
    answer = alice.head(f"{inside}/length")
    assert (answer.headers["content-length"], answer.content) == ("12345", b"")
    assert told(alice.get(f"{inside}/echo"))["method"] == "GET"
