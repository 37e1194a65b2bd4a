"""What a sandbox of this dialect may reach."""

from __future__ import annotations

import httpx

from tests.support.daemon import RunningDaemon

API = "/api/v1/sandbox"
SANDBOX = {"name": "one", "docker_image": "python:3.11-slim", "vm": True}


def test_what_may_be_reached_is_the_templates_until_it_is_said(daemon: RunningDaemon) -> None:
    with httpx.Client(base_url=daemon.url, timeout=15) as prime:
        made = prime.post(API, json=SANDBOX).json()
        prime.get(f"/v1/sandboxes/{made['id']}", params={"wait_s": 10})
        path = f"{API}/{made['id']}/egress-policy"
        told = prime.get(path).json()
        assert told["policy"] == {"allowlist": ["index.example:443"], "denylist": None}
        wanted: list[dict[str, list[str] | None]] = [
            {"allowlist": None, "denylist": []},
            {"allowlist": [], "denylist": None},
            {"allowlist": ["a.example"], "denylist": None},
        ]
        for asked in wanted:
            changed = prime.put(path, json=asked)
            assert changed.status_code == 200, changed.text
            assert (changed.json()["policy"], changed.json()["applied"]) == (asked, True)
            assert prime.get(path).json() == changed.json()
        closed = prime.post(API, json={**SANDBOX, "network_allowlist": []}).json()
        assert (closed["networkAllowlist"], closed["networkDenylist"]) == ([], None)
        prime.request("DELETE", API, json={"sandbox_ids": [made["id"], closed["id"]]})
