"""Images through a whole daemon, as callers meet them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from anyio import to_thread

from sandboxd.backends.docker.engine import Engine
from tests.conftest import EngineHost
from tests.support.daemon import run_daemon
from tests.support.registry import (
    Registry,
)

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]


CONFIG = """
[backend.docker]
host = "{host}"
allow_images = ["{address}/allowed*"]

[templates.good]
image = "{address}/good"
pool = {{ready = 1, max = 4}}

[templates.bad]
image = "{address}/nothing-of-the-kind"
pool = {{ready = 1, max = 4}}
"""


async def test_over_http_images_are_had_ready_leased_and_refused_each_for_itself(
    engine: Engine, engine_host: EngineHost, shop: Registry, tmp_path: Path
) -> None:
    for name in ("good", "allowed-one", "other"):
        await shop.push(name)
    config = CONFIG.format(host=engine_host.host, address=shop.address)
    (tmp_path / "daemon").mkdir()

    def use() -> None:
        with (
            run_daemon(tmp_path / "daemon", backend="docker", config=config) as daemon,
            httpx.Client(base_url=daemon.url, timeout=40) as client,
        ):
            _use_images(client, shop.address)

    await to_thread.run_sync(use)


def _use_images(client: httpx.Client, address: str) -> None:
    body = {"images": [f"{address}/allowed-one", f"{address}/allowed-not-there"]}
    answer = client.post("/v1/images/prefetch", params={"wait_s": 20}, json=body)
    assert [image["state"] for image in answer.json()["images"]] == ["present", "failed"]
    for path, refused in (
        ("/v1/images/prefetch", {"images": [f"{address}/other"]}),
        ("/v1/sandboxes", {"template": "good", "image": f"{address}/other"}),
    ):
        answer = client.post(path, json=refused)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "allow_images" in answer.json()["detail"]
    answer = client.post("/v1/sandboxes", json={"template": "bad"})
    assert (answer.status_code, answer.json()["fault"]) == (424, "task"), answer.text
    named = {"template": "good", "image": f"{address}/allowed-one"}
    for leased in ({"template": "good"}, named):
        answer = client.post("/v1/sandboxes", json=leased)
        assert answer.status_code == 201, answer.text
    listed = {image["reference"]: image for image in client.get("/v1/images").json()["images"]}
    assert listed[f"{address}/allowed-one:latest"]["in_use"] == 1
    assert listed[f"{address}/nothing-of-the-kind:latest"]["state"] == "failed"
    pools = {pool["template"]: pool for pool in client.get("/v1/pools").json()["pools"]}
    assert "nothing-of-the-kind" in str(pools["bad"]["last_error"])
    assert pools["good"]["last_error"] is None
