"""Policies: in place before the first pod, proven by two, gone with the last."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandboxd.backends.kubernetes import KubernetesSettings, open_kubernetes
from sandboxd.backends.kubernetes.objects import INSTALLATION, pods_path, policies_path
from tests.support.cluster import GUEST_IMAGE, TestCluster
from tests.support.cluster_boxes import backend_on, order
from tests.support.cluster_pods import NAMESPACE, Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(120)]


async def test_two_pods_find_out_that_this_cluster_enforces_no_policy_and_leave_nothing(
    cluster: TestCluster,
) -> None:
    """The cluster of the tests keeps policies and enforces none, as many do."""
    with anyio.fail_after(60):
        async with backend_on(cluster, network_policy="probe", installation="probed") as backend:
            can = backend.capabilities()
    assert not can.network_enforced
    assert can.direct_networks == {"internet"}
    server = Cluster(cluster)
    pods = server.get(pods_path(NAMESPACE), labelSelector=f"{INSTALLATION}=probed-probe")
    assert pods["items"] == []


async def test_policies_stand_while_there_are_pods_and_go_with_the_last(
    cluster: TestCluster,
) -> None:
    server = Cluster(cluster)

    def policies() -> dict[str, dict[str, Any]]:
        found = server.get(policies_path(NAMESPACE), labelSelector=f"{INSTALLATION}=held")
        return {each["metadata"]["name"]: each["spec"] for each in found["items"]}

    async with backend_on(cluster, installation="held", from_addresses=("10.9.0.0/16",)) as backend:
        await backend.make(order())
        found = policies()
        assert sorted(found) == ["sandboxd-held-guests", "sandboxd-held-isolated"]
        assert found["sandboxd-held-isolated"]["policyTypes"] == ["Egress"]
        assert "egress" not in found["sandboxd-held-isolated"]
        (door,) = found["sandboxd-held-guests"]["ingress"]
        assert door["from"] == [{"ipBlock": {"cidr": "10.9.0.0/16"}}]
        assert [port["port"] for port in door["ports"]] == [7031]
    assert policies() == {}


async def test_policies_stay_for_pods_that_live_on(cluster: TestCluster) -> None:
    server = Cluster(cluster)
    wanted = f"{INSTALLATION}=staying"
    async with backend_on(cluster, installation="staying") as first:
        box = await first.make(order())
        again = KubernetesSettings(
            installation="staying",
            guest_image=GUEST_IMAGE,
            kubeconfig=cluster.kubeconfig,
            guest="address",
            network_policy="none",
            secret=b"of these tests alone",
        )
        async with open_kubernetes(again) as second:  # which leaves its boxes alone
            assert await second.look(box) is None
        found = server.get(policies_path(NAMESPACE), labelSelector=wanted)["items"]
        assert len(found) == 2
