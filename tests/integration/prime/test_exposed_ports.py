"""A port inside, as `expose` gives it out."""

from __future__ import annotations

import httpx

from tests.contract.speaker import eventually
from tests.support.daemon import RunningDaemon

API = "/api/v1/sandbox"


def test_a_server_inside_is_reached_at_its_address_without_a_header(daemon: RunningDaemon) -> None:
    asked = {
        "name": "web",
        "docker_image": "any",
        "start_command": "echo hello > /tmp/x && python3 -m http.server -d /tmp 8000",
    }
    with httpx.Client(base_url=daemon.url, timeout=15) as prime:
        made = prime.post(API, json=asked).json()["id"]
        prime.get(f"/v1/sandboxes/{made}", params={"wait_s": 10})
        url = prime.post(f"{API}/{made}/expose", json={"port": 8000}).json()["url"]
        eventually(lambda: httpx.get(f"{url}x").text == "hello\n", within_s=10, what="it serves")
        prime.delete(f"{API}/{made}")
        assert httpx.get(f"{url}x").status_code == 410
