"""Kubernetes: what pods and API servers do to services like this one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.contract.cases.houses import House, house
from tests.contract.speaker import Speaker
from tests.support.cluster import TestCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


def lease(http: httpx.Client) -> Speaker:
    response = http.post("/v1/sandboxes", json={"template": "python"}, timeout=120)
    assert response.status_code == 201, response.text
    return Speaker(http, f"/v1/sandboxes/{response.json()['id']}")


def caller(opened: House) -> httpx.Client:
    return httpx.Client(base_url=opened.url, timeout=60)


def wrong_status(sandbox: Speaker, status: int, size: int) -> str:
    """Empty if the command's status and output are what they are."""
    ended = sandbox.exec(f"head -c {size} /dev/zero; exit {status}")
    told = (ended["exit_code"], ended["stdout_bytes"])
    return "" if told == (status, size) else f"{status}, {size}: {told}"


@pytest.mark.requirement("K8-03")
def test_k8_03_every_status_is_exact_whatever_came_before_it(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(tmp_path, cluster, pool="ready = 1, max = 2") as opened, caller(opened) as http:
        sandbox = lease(http)
        wanted = [(status, 0) for status in range(256)]
        wanted += [(status, size) for status in (0, 1, 77, 255) for size in (1 << 20, 5 << 20)]
        with ThreadPoolExecutor(4) as threads:
            wrong = threads.map(lambda each: wrong_status(sandbox, *each), wanted)
        assert [each for each in wrong if each] == []


@pytest.mark.requirement("K8-07")
def test_k8_07_a_pod_that_is_taken_away_ends_its_lease_and_is_replaced_in_stock(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(tmp_path, cluster, pool="ready = 2, max = 4") as opened, caller(opened) as http:
        opened.full(within_s=60)
        sandbox = lease(http)
        opened.remove(opened.box_of(sandbox.path.rpartition("/")[2]))
        end = sandbox.end(within_s=30)
        assert (end["reason"], end["fault"], end["mask"]) == ("died", "unknown", True)
        opened.empty(within_s=60)
        assert len(opened.boxes()) == 2


@pytest.mark.requirement("K8-09")
def test_k8_09_a_daemon_that_is_killed_loses_no_lease_and_leaks_no_pod(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(tmp_path, cluster, pool="ready = 2, max = 6") as opened:
        opened.full(within_s=60)
        with caller(opened) as http:
            held = [lease(http) for _ in range(2)]
            started = [each.start("sleep 8; echo on") for each in held]
        opened.full(within_s=60)
        before = opened.boxes()
        opened.service.kill()
        opened.service.start()
        with caller(opened) as http:
            for each, exec_id in zip(held, started, strict=True):
                again = Speaker(http, each.path)
                assert again.ended(exec_id, within_s=30)["stdout"] == "on\n"
            opened.full(within_s=60)
            assert opened.boxes() == before
            for each in held:
                http.delete(each.path)
        opened.empty(within_s=60)
        pods = opened.pods
        assert pods is not None
        assert len(opened.boxes()) == 2
        assert pods.secrets() == []
