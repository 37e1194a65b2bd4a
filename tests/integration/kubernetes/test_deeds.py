"""Which lease has a pod is noted on it; a daemon that comes back holds that against its store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import httpx
import pytest

from sandboxd.backends.kubernetes.objects import LEASE, pods_path
from tests.contract.cases.houses import House, house
from tests.contract.speaker import eventually
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import order, proxied_backend
from tests.support.cluster_pods import NAMESPACE, Cluster, Pods
from tests.support.engine_proxy import Fault

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(180)]


@pytest.fixture
def opened(cluster: TestCluster, tmp_path: Path) -> Iterator[House]:
    """A daemon with two pods in stock."""
    with house(tmp_path, cluster, pool="ready = 2, max = 6") as running:
        running.full(within_s=60)
        yield running


def lease(opened: House, **more: str) -> str:
    body = {"template": "python", **more}
    answer = httpx.post(f"{opened.url}/v1/sandboxes", json=body, timeout=60)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def pods_of(opened: House) -> Pods:
    assert opened.pods is not None
    return opened.pods


def noted(opened: House, box_id: str) -> str:
    return pods_of(opened).annotations(box_id).get(LEASE, "")


def until_noted(opened: House, box_id: str, lease_id: str) -> None:
    eventually(
        lambda: noted(opened, box_id) == lease_id, within_s=20, what="the lease is on its pod"
    )


def state_of(opened: House, lease_id: str) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{opened.url}/v1/sandboxes/{lease_id}", timeout=30).json()
    return found


def test_a_lease_its_run_and_its_group_are_on_its_pod_soon_after_it_was_told(
    opened: House,
) -> None:
    httpx.put(f"{opened.url}/v1/runs/night/heartbeat", json={"ttl_s": 60}, timeout=30)
    body = {"template": "python", "count": 2, "run_id": "night", "group_id": "pair"}
    answer = httpx.post(f"{opened.url}/v1/groups", json=body, timeout=60)
    assert answer.status_code == 201, answer.text
    for each in answer.json()["sandboxes"]:
        box_id = opened.box_of(each["id"])
        until_noted(opened, box_id, each["id"])
        words = pods_of(opened).annotations(box_id)
        assert (words["sandboxd/run"], words["sandboxd/group"]) == ("night", "pair")


def test_a_lease_of_a_daemon_that_was_killed_before_it_was_noted_is_noted_by_the_next(
    opened: House,
) -> None:
    box_id = opened.box_of(lease_id := lease(opened))
    opened.service.kill()
    pods_of(opened).annotate(box_id, {LEASE: ""})  # for the case that the note was faster
    opened.service.start()
    assert state_of(opened, lease_id)["state"] == "leased"
    until_noted(opened, box_id, lease_id)


def test_a_pod_that_is_noted_as_that_of_a_lease_nobody_knows_is_removed_and_never_handed_out(
    opened: House,
) -> None:
    """As after a store was lost, or an older one put in its place. One of the two was leased; the
    other's guest knows nothing of it, and its note alone speaks.
    """
    leased = opened.box_of(lease_id := lease(opened))
    until_noted(opened, leased, lease_id)
    opened.full(within_s=60)
    opened.service.kill()
    spoiled = min(opened.boxes() - {leased})
    pods_of(opened).annotate(spoiled, {LEASE: "sbx_of_nobody"})
    with closing(sqlite3.connect(opened.service.state / "leases.db")) as db, db:
        db.execute("DELETE FROM leases")
    opened.service.start()
    handed_out = {opened.box_of(lease(opened)) for _ in range(3)}
    assert not handed_out & {leased, spoiled}
    eventually(
        lambda: not opened.boxes() & {leased, spoiled}, within_s=60, what="both pods are gone"
    )
    log = opened.service.log.read_text()
    told = [line for line in log.splitlines() if "adopt.no_such_lease" in line]
    assert [any(each in line for line in told) for each in (leased, spoiled)] == [True, True]


def test_a_lease_whose_pod_is_noted_as_anothers_is_lost_by_name_and_masked(opened: House) -> None:
    box_id = opened.box_of(lease_id := lease(opened))
    until_noted(opened, box_id, lease_id)
    opened.service.kill()
    pods_of(opened).annotate(box_id, {LEASE: "sbx_of_another"})
    opened.service.start()
    found = state_of(opened, lease_id)
    end = found["end"]
    assert isinstance(end, dict)
    assert (end["reason"], end["mask"]) == ("died", True)
    assert "sbx_of_another" in end["detail"]
    opened.empty(within_s=60)
    eventually(lambda: box_id not in opened.boxes(), within_s=60, what="its pod is gone")


@pytest.mark.anyio
async def test_a_box_that_is_given_back_at_once_is_never_noted(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        box, other = await backend.make(order()), await backend.make(order())
        asked = proxy.fail(Fault("PATCH", status=503, times=1000))
        assert backend.deeds is not None
        backend.deeds.note(box, lease_id="sbx_1", run_id="", group_id="")
        await backend.dispose(box)
        assert asked.seen == 0
        backend.deeds.note(other, lease_id="sbx_2", run_id="", group_id="")
        with anyio.fail_after(20):
            while asked.seen < 2:  # noqa: ASYNC110 - a proxy tells nobody
                await anyio.sleep(0.05)
        proxy.faults.clear()
        path, server = pods_path(NAMESPACE, str(other.details["pod"])), Cluster(cluster)
        with anyio.fail_after(20):
            while LEASE not in server.get(path)["metadata"]["annotations"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_an_account_that_may_not_note_anything_costs_no_lease(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        box, other = await backend.make(order()), await backend.make(order())
        denied = proxy.fail(Fault("PATCH", status=403, times=1000))
        assert backend.deeds is not None
        backend.deeds.note(box, lease_id="sbx_1", run_id="", group_id="")
        with anyio.fail_after(20):
            while not denied.seen:  # noqa: ASYNC110 - a proxy tells nobody
                await anyio.sleep(0.05)
        await backend.dispose(box)  # after which the refusal has been read
        backend.deeds.note(other, lease_id="sbx_2", run_id="", group_id="")
        await backend.dispose(other)
        assert denied.seen == 1
