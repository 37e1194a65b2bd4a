"""Pools of pods: failing pulls are tried ever more seldom, no stock means no pod, and stock of a
template that has changed is replaced.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.contract.cases.houses import House, house
from tests.contract.speaker import Speaker, eventually
from tests.support.cluster import TestCluster
from tests.support.registry import missing as registry_missing
from tests.support.registry import registry

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(180)]


def pool_named(opened: House, name: str) -> dict[str, Any]:
    pools: list[dict[str, Any]] = httpx.get(f"{opened.url}/v1/pools", timeout=30).json()["pools"]
    return next(pool for pool in pools if pool["template"] == name)


def lease(opened: House, template: str = "python", **more: Any) -> httpx.Response:
    body = {"template": template, **more}
    return httpx.post(f"{opened.url}/v1/sandboxes", json=body, timeout=120)


def failures(opened: House, pool: str) -> list[float]:
    """When makes failed, by the daemon's own log, in seconds of the day."""
    lines = opened.service.log.read_text(errors="replace").splitlines()
    found = [json.loads(line) for line in lines if '"make.failed"' in line]
    return [seconds(str(each["timestamp"])) for each in found if each["pool"] == pool]


def seconds(at: str) -> float:
    hours, minutes, rest = at[11:].rstrip("Z").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.requirement("K8-04")
@pytest.mark.skipif(bool(registry_missing()), reason=registry_missing())
async def test_a_pull_that_fails_is_tried_ever_more_seldom_and_callers_are_told_why_at_once(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with registry(tmp_path) as running:
        await running.push("evals/one")
        image = f"{running.address}/evals/one:nope"
        more = (
            f"[templates.broken]\nimage = {json.dumps(image)}\n"
            "resources = {memory_mb = 128, pids = 64}\n"
            "pool = {ready = 1, max = 4, starting = 1}\n"
        )
        await anyio.to_thread.run_sync(_meet_failing_pulls, cluster, tmp_path, more, image)


def _meet_failing_pulls(cluster: TestCluster, place: Path, more: str, image: str) -> None:
    with house(place, cluster, pool="ready = 1, max = 2", more=more) as opened:
        eventually(
            lambda: pool_named(opened, "broken")["state"] == "open",
            within_s=120,
            what="its circuit is open",
        )
        told = lease(opened, "broken", wait_timeout_s=60)
        assert (told.status_code, told.json()["code"]) == (424, "image_unavailable"), told.text
        assert image in told.json()["detail"]
        gaps = [after - before for before, after in pairwise(failures(opened, "broken"))]
        assert len(gaps) >= 4
        # The pauses double from half a second on; to each comes what a node takes to be refused.
        assert gaps[3] > gaps[0] + 2
        assert pool_named(opened, "python")["ready"] == 1


def test_a_pool_without_stock_has_no_pod_and_makes_one_for_who_asks(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(tmp_path, cluster, pool="ready = 2, max = 4") as opened:
        opened.full(within_s=60)
        httpx.patch(f"{opened.url}/v1/pools/python", json={"ready": 0}, timeout=30)
        eventually(lambda: opened.boxes() == set(), within_s=60, what="no pod is left")
        asked = lease(opened)
        assert (asked.status_code, asked.json()["warm"]) == (201, False), asked.text
        assert len(opened.boxes()) == 1
        httpx.delete(f"{opened.url}/v1/sandboxes/{asked.json()['id']}", timeout=30)
        eventually(lambda: opened.boxes() == set(), within_s=60, what="no pod is left")


def test_stock_of_a_template_that_has_changed_is_replaced_and_leases_of_it_live_on(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(tmp_path, cluster, pool="ready = 2, max = 6") as opened:
        opened.full(within_s=60)
        asked = lease(opened).json()
        held = opened.box_of(asked["id"])
        opened.full(within_s=60)
        old = opened.boxes()
        config = (opened.service.folder / "sandboxd.toml").read_text()
        opened.service.rewrite(config.replace("memory_mb = 256", "memory_mb = 192"))
        eventually(
            lambda: not (opened.boxes() - {held}) & old and len(opened.boxes()) == 3,
            within_s=60,
            what="other pods are in stock",
        )
        opened.full(within_s=60)
        assert opened.pods is not None
        limits = {
            box_id: opened.pods.facts(box_id)["spec"]["containers"][0]["resources"]["limits"]
            for box_id in opened.boxes()
        }
        memory = {box_id: limit["memory"] for box_id, limit in limits.items()}
        assert memory.pop(held) == "256Mi"
        assert set(memory.values()) == {"192Mi"}
        with httpx.Client(base_url=opened.url, timeout=30) as http:
            assert Speaker(http, f"/v1/sandboxes/{asked['id']}").exec("true")["exit_code"] == 0
