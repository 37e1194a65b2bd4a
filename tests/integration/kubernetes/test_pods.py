"""What a pod is made of, as the cluster has it, and what its programs see of the cluster."""

from __future__ import annotations

import json

import anyio
import pytest

from sandboxd.backends.kubernetes.objects import pods_path, secrets_path
from sandboxd.guest.tcp import guest_token
from sandboxd.model.template import PodOptions
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import backend_on, order, run, spec
from tests.support.cluster_pods import NAMESPACE, Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(120)]

SECRET = b"a secret of this test"


async def test_the_token_is_nowhere_once_the_guest_has_it(cluster: TestCluster) -> None:
    async with backend_on(cluster, secret=SECRET) as backend:
        box = await backend.make(order())
        token = guest_token(SECRET, box.box_id)
        server = Cluster(cluster)
        secrets = server.get(secrets_path(NAMESPACE))["items"]
        assert not [each for each in secrets if box.box_id in each["metadata"]["name"]]
        assert token not in json.dumps(server.get(pods_path(NAMESPACE)))
        seen = await run(
            backend,
            box,
            "env; cat /proc/1/environ /proc/1/cmdline 2>&1; ls -laR /run/guest; "
            "ls /var/run/secrets /guest 2>&1; true",
        )
        said = seen.stdout.head + seen.stdout.tail + seen.stderr.head
        assert token.encode() not in said
        assert b"KUBERNETES" not in said
        assert b"kubernetes.io" not in said


async def test_a_pod_has_no_more_rights_than_its_guest_needs(cluster: TestCluster) -> None:
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        facts = Cluster(cluster).get(pods_path(NAMESPACE, str(box.details["pod"])))["spec"]
    assert facts["restartPolicy"] == "Never"
    assert facts["automountServiceAccountToken"] is False
    assert facts["enableServiceLinks"] is False
    assert facts["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (main,) = facts["containers"]
    assert main["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "SYS_ADMIN" not in main["securityContext"]["capabilities"]["add"]
    assert main["resources"]["limits"]["memory"] == "128Mi"
    assert set(main["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}


async def test_what_a_template_says_of_its_pods_is_merged(cluster: TestCluster) -> None:
    fields = {
        "nodeSelector": {"k8s.test/node": "1"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "dnsPolicy": "Default",
    }
    async with backend_on(cluster) as backend:
        box = await backend.make(order(spec(pod=PodOptions(fields=json.dumps(fields)))))
        facts = Cluster(cluster).get(pods_path(NAMESPACE, str(box.details["pod"])))["spec"]
    assert facts["nodeSelector"] == {"k8s.test/node": "1"}
    assert {"key": "a", "operator": "Exists"} in facts["tolerations"]
    assert facts["dnsPolicy"] == "Default"
    assert facts["restartPolicy"] == "Never"


@pytest.mark.requirement("K8-01")
async def test_a_box_takes_commands_from_the_first_moment_on(cluster: TestCluster) -> None:
    failed: list[object] = []
    async with backend_on(cluster) as backend:

        async def make_and_use() -> None:
            box = await backend.make(order())
            ended = await run(backend, box, "exit 7")
            if ended.exit_code != 7:
                failed.append(ended)

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(make_and_use)
    assert failed == []


@pytest.mark.requirement("K8-02")
@pytest.mark.parametrize("way", ["address", "forward"])
async def test_input_ends_and_output_is_whole_either_way(cluster: TestCluster, way: str) -> None:
    async with backend_on(cluster, guest=way) as backend:
        box = await backend.make(order())
        big = await run(backend, box, "head -c 5000000 /dev/zero | tr '\\0' x; exit 3")
        assert (big.exit_code, big.stdout.total_bytes) == (3, 5_000_000)
