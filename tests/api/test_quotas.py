"""Quotas over HTTP: what a key is told, and that they are read again."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.service import Service, service

CONFIG = """
[server]
api_keys = [
  {{name = "alice", key = "alice-secret-key", quota = {{{quota}}}}},
  {{name = "bob", key = "bob-secret-key"}},
]

[templates.python]
image = "host"
resources = {{cpu = 0.5, memory_mb = 64}}
pool = {{ready = 1, max = 20}}
"""

pytestmark = pytest.mark.requirement("SE-07")


def caller(daemon: Service, name: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {name}-secret-key"}
    return httpx.Client(base_url=daemon.url, headers=headers, timeout=15)


def test_a_key_sees_its_own_quota_and_use_and_is_told_what_is_used_up(tmp_path: Path) -> None:
    config = CONFIG.format(quota="leases = 1, cpu = 2, creates_per_minute = 60")
    with (
        service(tmp_path, backend="fake", config=config) as daemon,
        caller(daemon, "alice") as alice,
        caller(daemon, "bob") as bob,
    ):
        assert alice.post("/v1/sandboxes", json={"template": "python"}).status_code == 201
        assert bob.post("/v1/sandboxes", json={"template": "python"}).status_code == 201
        assert alice.get("/v1/quota").json() == {
            "key": "alice",
            "limits": {"leases": 1, "cpu": 2, "memory_mb": None, "creates_per_minute": 60},
            "used": {"leases": 1, "cpu": 0.5, "memory_mb": 64},
            "creates_left": 59,
        }
        assert bob.get("/v1/quota").json()["limits"]["leases"] is None
        refused = alice.post("/v1/sandboxes", json={"template": "python"})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert refused.json()["details"]["quota"] == "leases"
        assert "bob" not in refused.text
        assert bob.post("/v1/sandboxes", json={"template": "python"}).status_code == 201


def test_a_rate_that_is_used_up_comes_with_retry_after(tmp_path: Path) -> None:
    config = CONFIG.format(quota="creates_per_minute = 2")
    with (
        service(tmp_path, backend="fake", config=config) as daemon,
        caller(daemon, "alice") as alice,
    ):
        for _ in range(2):
            assert alice.post("/v1/sandboxes", json={"template": "python"}).status_code == 201
        refused = alice.post("/v1/sandboxes", json={"template": "python"})
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 30


def test_quotas_are_read_again_with_the_configuration(tmp_path: Path) -> None:
    with (
        service(tmp_path, backend="fake", config=CONFIG.format(quota="leases = 0")) as daemon,
        caller(daemon, "alice") as alice,
    ):
        assert alice.post("/v1/sandboxes", json={"template": "python"}).status_code == 429
        daemon.rewrite(CONFIG.format(quota="leases = 5"))
        while alice.get("/v1/quota").json()["limits"]["leases"] != 5:
            pass  # each look is a round trip
        assert alice.post("/v1/sandboxes", json={"template": "python"}).status_code == 201
        assert '"act": "reload"' in daemon.log.read_text()
