"""Who did what can be read in the daemon's log, and nobody can fill it or read a key in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.daemon import RunningDaemon, run_daemon

CONFIG = """
[server]
api_keys = [
  {name = "alice", key = "alice-secret-key"},
  {name = "bob", key = "bob-secret-key", quota = {leases = 0}},
]

[templates.python]
image = "host"
pool = {ready = 1, max = 20}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with run_daemon(tmp_path, config=CONFIG) as running:
        yield running


def caller(daemon: RunningDaemon, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=daemon.url, headers=headers, timeout=15)


def lines(daemon: RunningDaemon, **wanted: object) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in daemon.log.read_text().splitlines() if line[:1] == "{"]
    audit = [line for line in found if line.get("logger") == "audit"]
    return [line for line in audit if wanted.items() <= line.items()]


def test_each_act_is_a_line_with_who_what_and_how_it_ended(daemon: RunningDaemon) -> None:
    with caller(daemon, "alice-secret-key") as alice:
        body = {"template": "python", "env": {"A": "hush"}, "secrets": {"S": "hush"}}
        headers = {"X-Request-ID": "r-1"}
        sandbox = alice.post("/v1/sandboxes", json=body, headers=headers).json()["id"]
        path = f"/v1/sandboxes/{sandbox}"
        alice.post(f"{path}/renew", json={"timeout_s": 60})
        token = alice.post(f"{path}/tokens", json={"rights": "read"}).json()["token"]
        alice.post(f"{path}/execs", json={"cmd": "echo hush"})
        alice.put(f"{path}/files", params={"path": "hush"}, content=b"hush")
        alice.get(path)
        alice.patch("/v1/pools/python", json={"ready": 0})
        alice.delete(path)
        alice.delete("/v1/sandboxes", params={"label": "hush=hush"})
    (leased,) = lines(daemon, act="lease_sandbox")
    assert (leased["who"], leased["sandbox_id"], leased["status"]) == ("alice", sandbox, 201)
    assert (leased["request_id"], leased["level"]) == ("r-1", "info")
    for act in ("renew_sandbox", "mint_token", "release_sandbox"):
        (line,) = lines(daemon, act=act)
        assert (line["who"], line["sandbox_id"]) == ("alice", sandbox)
        assert line["status"] in {200, 201}
    assert lines(daemon, act="adjust_pool", template="python", ready=0)
    assert lines(daemon, act="release_sandboxes", sandbox_ids=[])
    assert len(lines(daemon)) == 6  # neither commands, files nor looks
    for secret in ("hush", "alice-secret-key", token):
        assert secret not in daemon.log.read_text()


def test_what_is_refused_to_a_key_is_a_line_with_the_code(daemon: RunningDaemon) -> None:
    with caller(daemon, "bob-secret-key") as bob:
        assert bob.post("/v1/sandboxes", json={"template": "python"}).status_code == 429
    (line,) = lines(daemon, who="bob")
    assert (line["act"], line["status"], line["code"]) == ("lease_sandbox", 429, "quota_exceeded")


def test_a_flood_of_bad_keys_leaves_few_lines_and_no_key(daemon: RunningDaemon) -> None:
    with caller(daemon, "hush-not-a-key") as stranger:
        for _ in range(300):
            assert stranger.delete("/v1/sandboxes/x?label=hush").status_code == 401
        assert stranger.get("/s/hush-no-token/execs").status_code == 401
    refused = lines(daemon, act="enter")
    assert 20 <= len(refused) < 60
    assert refused[0]["code"] == "unauthenticated"
    assert refused[0]["address"] == "127.0.0.1"
    assert "hush" not in daemon.log.read_text()
    if len(refused) > 20:
        assert refused[20]["left_out"] > 0


def test_what_a_token_does_and_may_not_do_is_told_of_its_sandbox(daemon: RunningDaemon) -> None:
    with caller(daemon, "alice-secret-key") as alice:
        sandbox = alice.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
        token = alice.post(f"/v1/sandboxes/{sandbox}/tokens", json={}).json()["token"]
    with caller(daemon, token) as bearer:
        assert bearer.delete(f"/v1/sandboxes/{sandbox}").status_code == 403
        assert bearer.put(f"/v1/sandboxes/{sandbox}/network", json={"network": "none"}).is_success
    (line,) = lines(daemon, act="enter")
    assert line["code"] == "forbidden"
    (line,) = lines(daemon, act="set_network")
    assert line["who"] == f"token of {sandbox}"
