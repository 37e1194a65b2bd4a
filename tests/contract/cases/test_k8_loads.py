"""Kubernetes: the same under the loads that were seen to break services like this one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.kubernetes import KubernetesBackend
from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.protocol import BoxRef
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from tests.contract.cases.houses import House, house
from tests.contract.cases.test_k8 import caller, lease, wrong_status
from tests.contract.speaker import Speaker
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import order, proxied_backend
from tests.support.cluster_pods import NAMESPACE, Cluster
from tests.support.engine_proxy import Fault

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.serial,
    pytest.mark.timeout(580),
]

_CREATES, _AT_ONCE, _MOST = 200, 16, 32  # boxes that go count as well
_SANDBOXES, _COMMANDS = 60, 10  # of a thousand: what the node holds beside its own
_BUSY_S = 30.0
_RESTART_S = 15.0  # between two restarts: a pod takes some seconds to start


def create_and_use(opened: House, number: int) -> str:
    """A sandbox, a command in it at once, and its end. Empty if all of it was right."""
    with caller(opened) as http:
        sandbox = lease(http)
        ended = sandbox.exec(f"echo {number}; exit {number % 256}")
        http.delete(sandbox.path).raise_for_status()
    told = (ended["exit_code"], ended["stdout"])
    return "" if told == (number % 256, f"{number}\n") else f"{number}: {told}"


@pytest.mark.requirement("K8-01")
@pytest.mark.parametrize("restarts", [False, True], ids=["quiet", "kubelet restarts"])
def test_k8_01_a_command_right_after_its_sandbox_was_made_never_fails(
    cluster: TestCluster, tmp_path: Path, *, restarts: bool
) -> None:
    done = threading.Event()

    def restart() -> None:
        while not done.wait(_RESTART_S):
            cluster.end("kubelet")
            cluster.start()

    pool = f"ready = 0, max = {_MOST}, starting = {_AT_ONCE}, queue = 300"
    with house(tmp_path, cluster, pool=pool) as opened, ThreadPoolExecutor(_AT_ONCE + 1) as threads:
        restarting = threads.submit(restart) if restarts else None
        try:
            wrong = list(threads.map(lambda n: create_and_use(opened, n), range(_CREATES)))
        finally:
            done.set()
        if restarting is not None:
            restarting.result()
        assert [each for each in wrong if each] == []
        opened.empty(within_s=120)


@pytest.mark.requirement("K8-03")
def test_k8_03_every_status_is_exact_with_nothing_little_and_much_before_it(
    cluster: TestCluster, tmp_path: Path
) -> None:
    wanted = [(status, size) for size in (0, 1 << 20, 5 << 20) for status in range(256)]
    with house(tmp_path, cluster, pool="ready = 4, max = 4") as opened, caller(opened) as http:
        sandboxes = [lease(http) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            wrong = threads.map(
                lambda numbered: wrong_status(sandboxes[numbered[0] % 4], *numbered[1]),
                enumerate(wanted),
            )
        assert [each for each in wrong if each] == []


def evict(cluster: TestCluster, opened: House, box_id: str) -> None:
    """As `kubectl drain` does it for each pod of a node."""
    assert opened.pods is not None
    name = opened.pods.facts(box_id)["metadata"]["name"]
    body = {"kind": "Eviction", "apiVersion": "policy/v1beta1", "metadata": {"name": name}}
    Cluster(cluster).create(f"{pods_path(NAMESPACE, name)}/eviction", body)


def cordon(cluster: TestCluster, *, on: bool) -> None:
    Cluster(cluster).change(
        "/api/v1/nodes/node1", lambda node: node["spec"].update(unschedulable=on)
    )


@pytest.mark.requirement("K8-07")
def test_k8_07_a_drained_node_ends_its_leases_and_stock_comes_back_with_it(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """Clusters before 1.26 do not say of a deleted pod that it was evicted."""
    with house(tmp_path, cluster, pool="ready = 2, max = 6") as opened, caller(opened) as http:
        opened.full(within_s=60)
        sandbox = lease(http)
        opened.full(within_s=60)
        cordon(cluster, on=True)
        try:
            for box_id in opened.boxes():
                evict(cluster, opened, box_id)
            end = sandbox.end(within_s=60)
        finally:
            cordon(cluster, on=False)
        assert (end["reason"], end["fault"], end["mask"]) in {
            ("died", "unknown", True),
            ("evicted", "infra", True),
        }
        opened.empty(within_s=120)


@pytest.mark.requirement("K8-07")
def test_k8_07_a_pod_that_writes_more_than_its_disk_is_evicted_by_its_node_and_told_so(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with (
        house(tmp_path, cluster, pool="ready = 0, max = 2") as opened,
        caller(opened) as http,
    ):
        body = {"template": "python", "resources": {"disk_mb": 32}}
        answer = http.post("/v1/sandboxes", json=body, timeout=120)
        assert answer.status_code == 201, answer.text
        sandbox = Speaker(http, f"/v1/sandboxes/{answer.json()['id']}")
        sandbox.start("head -c 120000000 /dev/zero > /workspace/big; sleep 120")
        end = sandbox.end(within_s=90)
        assert (end["reason"], end["fault"], end["mask"]) == ("disk", "agent", False)


async def commands_in(backend: KubernetesBackend, box: BoxRef) -> list[int | None]:
    """What a caller's sandbox does: many commands over one line."""
    guest = Guest(lambda: backend.connect(box))
    try:
        await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=600))
        codes: list[int | None] = []
        for number in range(_COMMANDS):
            argv = ("/bin/sh", "-c", f"exit {number}")
            command = Command(exec_id=new_id("exec"), argv=argv, timeout_s=60)
            codes.append((await guest.run(command, wait=True)).exit_code)
        return codes
    finally:
        await guest.aclose()


@pytest.mark.anyio
@pytest.mark.requirement("K8-08")
async def test_k8_08_commands_cost_the_server_nothing_and_a_busy_one_is_given_its_time(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        boxes: list[BoxRef] = []
        wrong: list[object] = []

        async def make() -> None:
            boxes.append(await backend.make(order()))

        async def use(box: BoxRef) -> None:
            codes = await commands_in(backend, box)
            if codes != list(range(_COMMANDS)):
                wrong.append(codes)

        await together([make] * _SANDBOXES)
        asked = proxy.fail(Fault(r"\A(?!GET .*watch=true)", times=1000))
        await together([partial(use, box) for box in boxes])
        proxy.faults.clear()
        assert wrong == []
        assert asked.seen == 0, "calls to the server for commands"
        busy = proxy.fail(
            Fault(r"\A(?!GET .*watch=true)", status=429, retry_after_s=5, times=10_000)
        )
        began = time.monotonic()

        async def relent() -> None:
            await anyio.sleep(_BUSY_S)
            proxy.faults.clear()

        await together([relent, *[make] * 4])
        assert time.monotonic() - began > _BUSY_S
        # Four makes, each asked again every 5 s at most: none of them hammers.
        assert busy.seen <= 4 * (_BUSY_S / 5 + 2)
        assert len(boxes) == _SANDBOXES + 4


async def together(calls: list[Callable[[], object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)  # type: ignore[arg-type]
