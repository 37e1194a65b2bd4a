"""Networks and forwards as callers set and see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, problem

FORWARDS = {
    "8000": "http://127.0.0.1:9",
    "8001": {"url": "https://api.test/v1", "headers": {"X-Key": "s3cret"}},
}


@pytest.fixture
def led_out(http: httpx.Client) -> Iterator[Speaker]:
    """A sandbox with a list and forwards."""
    wish = {"template": "python", "network": {"allow": ["*.test:443"]}, "forwards": FORWARDS}
    made = http.post("/v1/sandboxes", json=wish)
    assert made.status_code == 201, made.text
    assert "s3cret" not in made.text
    yield Speaker(http, f"/v1/sandboxes/{made.json()['id']}")
    http.delete(f"/v1/sandboxes/{made.json()['id']}")


def test_a_sandbox_says_what_it_may_reach(led_out: Speaker, sandbox: Speaker) -> None:
    told = led_out.get().json()
    assert told["network"] == {"allow": ["*.test:443"]}
    assert told["proxy"] == "http://127.0.0.1:3128"
    assert told["forwards"] == {"8000": "http://127.0.0.1:9", "8001": "https://api.test/v1"}
    assert told["cold_because"] == []  # a network binds late, here
    plain = sandbox.get().json()
    assert (plain["network"], plain["proxy"], plain["forwards"]) == ("none", None, {})


def test_forwards_are_listed_without_their_secrets(led_out: Speaker) -> None:
    assert led_out.get("/forwards").json()["forwards"] == [
        {"port": 8000, "url": "http://127.0.0.1:9", "header_names": [], "ready": True},
        {"port": 8001, "url": "https://api.test/v1", "header_names": ["x-key"], "ready": True},
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"forwards": {"9000": "tcp://10.0.0.1:5432"}},
        {"9000": "tcp://10.0.0.1:5432"},
        {"port": 9000, "url": "tcp://10.0.0.1:5432"},
    ],
)
def test_a_forward_is_added_in_each_way_of_saying_so(
    sandbox: Speaker, body: dict[str, Any]
) -> None:
    added = sandbox.post("/forwards", body)
    assert (added.status_code, [f["port"] for f in added.json()["forwards"]]) == (201, [9000])
    path = f"{sandbox.path}/forwards/9000"
    assert sandbox.http.delete(path).status_code == 204
    problem(sandbox.http.delete(path), 404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"forwards": {}},
        {"forwards": {"0": "http://x:1"}},
        {"forwards": {"70000": "http://x:1"}},
        {"forwards": {"http": "http://x:1"}},
        {"forwards": {"9000": "x:1"}},
        {"forwards": {"9000": {"url": "http://x:1", "header": {}}}},
        {"forwards": {"9000": {"url": "http://x:1", "headers": {"a b": "c"}}}},
        {"forwards": {"9000": {"url": "http://x:1", "headers": {"a": "c\r\nd: e"}}}},
        {"forwards": {"9000": {"url": "tcp://x:1", "headers": {"a": "s3cret"}}}},
        {"forwards": {str(port): "http://x:1" for port in range(9000, 9040)}},
        {"port": 9000, "url": "http://x:1", "more": 1},
        [],
    ],
)
def test_a_forward_that_makes_no_sense_is_refused_and_says_nothing_back(
    sandbox: Speaker, body: Any
) -> None:
    refused = sandbox.http.post(f"{sandbox.path}/forwards", json=body)
    problem(refused, 422, "bad_request")
    assert "s3cret" not in refused.text
    assert sandbox.get("/forwards").json()["forwards"] == []


@pytest.mark.parametrize(
    "network",
    ["all", {"allow": []}, {"allow": ["a b"]}, {"allow": ["*"]}, {"deny": ["x"]}, None, 1],
)
def test_a_network_that_makes_no_sense_is_refused(sandbox: Speaker, network: Any) -> None:
    put = sandbox.http.put(f"{sandbox.path}/network", json={"network": network})
    problem(put, 422, "bad_request")
    wish = {"template": "python", "network": network}
    if network is not None:
        problem(sandbox.http.post("/v1/sandboxes", json=wish), 422, "bad_request")


def test_a_network_is_changed_while_it_is_used(sandbox: Speaker) -> None:
    put = sandbox.http.put(f"{sandbox.path}/network", json={"network": "internet"})
    assert (put.json()["network"], put.json()["proxy"]) == ("internet", "http://127.0.0.1:3128")
    put = sandbox.http.put(f"{sandbox.path}/network", json={"network": "none"})
    assert (put.json()["network"], put.json()["proxy"]) == ("none", None)


def test_a_forward_to_the_daemon_itself_is_forbidden(sandbox: Speaker) -> None:
    port = sandbox.http.base_url.port
    for host in ("127.0.0.1", "localhost", "[::1]", "0x7f.1", "api.localhost"):
        body = {"forwards": {"9000": f"http://{host}:{port}"}}
        problem(sandbox.post("/forwards", body), 403, "forbidden")
        wish = {"template": "python", **body}
        problem(sandbox.http.post("/v1/sandboxes", json=wish), 403, "forbidden")


def test_what_is_over_has_no_way_out(led_out: Speaker) -> None:
    led_out.http.delete(led_out.path)
    problem(led_out.get("/forwards"), 410, "lease_ended")
    problem(led_out.post("/forwards", {"forwards": {"9000": "http://x:1"}}), 410, "lease_ended")
    put = led_out.http.put(f"{led_out.path}/network", json={"network": "none"})
    problem(put, 410, "lease_ended")
