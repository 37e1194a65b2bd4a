"""Why pods die: brought about for real, and told with the evidence of the cluster."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from sandboxd.backends.kubernetes import KubernetesBackend
from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.protocol import BoxRef, Death
from sandboxd.errors import SandboxdError
from sandboxd.guest import GuestLost
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.support.cluster import POD_IMAGE, TestCluster
from tests.support.cluster_boxes import backend_on, order, run, spec
from tests.support.cluster_pods import NAMESPACE, Cluster, first_process, kill_first_process
from tests.support.memory import offer_to_the_kernel

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(120)]


async def hog(backend: KubernetesBackend, box: BoxRef) -> None:
    """Take all of the box's memory, by processes none of which has much; it may die of it."""
    held = "python3 -c 'import time; x = bytearray(b\"x\" * (8 << 20)); time.sleep(60)'"
    with suppress(SandboxdError, GuestLost):
        await run(backend, box, f"sleep 1; for n in $(seq 20); do {held} & done; wait")


def facts(death: Death) -> tuple[EndReason, Fault, bool]:
    return death.reason, death.fault, death.mask


async def next_death(backend: KubernetesBackend, box: BoxRef, cause: object) -> Death:
    """The death of the box, which `cause` brings about; `look` then says the same."""
    assert callable(cause)
    async with backend.watch() as deaths:
        await anyio.to_thread.run_sync(cause)
        with anyio.fail_after(60):
            death = await anext(deaths)
    assert death.box_id == box.box_id
    assert await backend.look(box) == death
    with pytest.raises(SandboxdError) as caught:
        await backend.connect(box)
    assert caught.value.code is ErrorCode.SANDBOX_LOST
    return death


async def test_a_first_process_that_is_killed_from_outside_is_unknown_and_masked(
    cluster: TestCluster,
) -> None:
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        uid = str(box.details["uid"])
        death = await next_death(backend, box, lambda: kill_first_process(uid))
    assert facts(death) == (EndReason.DIED, Fault.UNKNOWN, True)


async def test_a_first_process_that_dies_for_its_own_memory_ends_oom(cluster: TestCluster) -> None:
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        pid = first_process(str(box.details["uid"]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hog, backend, box)
            death = await next_death(backend, box, lambda: offer_to_the_kernel(pid))
            tasks.cancel_scope.cancel()
    assert facts(death) == (EndReason.OOM, Fault.AGENT, False)
    assert death.evidence["memory_limit_bytes"] == 128 << 20


async def test_a_kill_after_an_oom_that_the_box_outlived_is_not_called_oom(
    cluster: TestCluster,
) -> None:
    """Nodes say OOMKilled of both."""
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        ended = await run(
            backend, box, "head -c 400000000 /dev/zero | tail -c 300000000 >/dev/null"
        )
        assert ended.oom_kills == 1
        uid = str(box.details["uid"])
        death = await next_death(backend, box, lambda: kill_first_process(uid))
    assert facts(death) == (EndReason.DIED, Fault.UNKNOWN, True)


async def test_a_pod_that_is_deleted_behind_our_back_is_unknown_and_masked(
    cluster: TestCluster,
) -> None:
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        path = pods_path(NAMESPACE, str(box.details["pod"]))
        death = await next_death(backend, box, lambda: Cluster(cluster).delete(path))
    assert facts(death) == (EndReason.DIED, Fault.UNKNOWN, True)
    assert "deleted its pod" in death.detail


@pytest.mark.serial
async def test_a_pod_that_makes_room_for_one_of_higher_priority_is_evicted(
    cluster: TestCluster,
) -> None:
    server = Cluster(cluster)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    rival = {
        "metadata": {"name": "rival"},
        "spec": {
            "priorityClassName": "tests-high",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": POD_IMAGE,
                    "command": ["sleep", "600"],
                    "resources": {"requests": {"cpu": "1500m"}},
                }
            ],
        },
    }
    server.create(classes, {"metadata": {"name": "tests-high"}, "value": 1000})
    try:
        async with backend_on(cluster, cpu_request=1.0) as backend:
            box = await backend.make(order(spec(cpu=1.0)))
            death = await next_death(
                backend, box, lambda: server.create(pods_path(NAMESPACE), rival)
            )
    finally:
        server.delete(pods_path(NAMESPACE, "rival"), gracePeriodSeconds=0)
        server.delete(f"{classes}/tests-high")
    assert facts(death) == (EndReason.EVICTED, Fault.INFRA, True)
    assert death.evidence["cause"] == "preempted"


@pytest.mark.serial
@pytest.mark.requirement("K8-07")
async def test_a_pod_that_is_driven_from_a_lost_node_is_told_as_node_lost(
    cluster: TestCluster,
) -> None:
    """By a taint, as the cluster itself puts one on a node that does not answer. A cluster of one
    node would never give that one up.
    """
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        try:
            death = await next_death(backend, box, lambda: taint(cluster, "tests/lost"))
        finally:
            taint(cluster, "")
    assert facts(death) == (EndReason.NODE_LOST, Fault.INFRA, True)
    assert death.evidence["node"] == "node1"


def taint(cluster: TestCluster, key: str) -> None:
    """Put a taint on the node that no pod tolerates; an empty key: none."""
    taints = [{"key": key, "effect": "NoExecute"}] if key else []
    Cluster(cluster).change("/api/v1/nodes/node1", lambda node: node["spec"].update(taints=taints))
