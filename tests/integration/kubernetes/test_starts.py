"""Pods that never start: whose fault it was, in whose words, and nothing is left of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec, Network, PodOptions
from sandboxd.wire.codes import ErrorCode, Fault
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import backend_on, order, spec
from tests.support.registry import missing as registry_missing
from tests.support.registry import registry

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(120)]


async def refused(cluster: TestCluster, wanted: BoxSpec, **settings: object) -> SandboxdError:
    async with backend_on(cluster, **settings) as backend:
        with anyio.fail_after(60), pytest.raises(SandboxdError) as caught:
            await backend.make(order(wanted))
        assert await backend.list_owned() == []
    return caught.value


@pytest.mark.requirement("K8-04")
async def test_a_pod_that_no_node_takes_is_a_want_of_capacity_in_the_schedulers_words(
    cluster: TestCluster,
) -> None:
    error = await refused(cluster, spec(cpu=10_000), cpu_request=1.0, unschedulable_s=1.0)
    assert (error.code, error.fault, error.retry_safe) == (ErrorCode.CAPACITY, Fault.INFRA, True)
    assert "0/1 nodes are available" in error.detail
    assert "cpu" in error.detail


@pytest.mark.requirement("K8-04")
async def test_a_selector_that_no_node_meets_is_named(cluster: TestCluster) -> None:
    pod = PodOptions(fields=json.dumps({"nodeSelector": {"no-such": "node"}}))
    error = await refused(cluster, spec(pod=pod), unschedulable_s=1.0)
    assert error.code is ErrorCode.CAPACITY
    assert "0/1 nodes are available" in error.detail


@pytest.mark.requirement("K8-04")
@pytest.mark.skipif(bool(registry_missing()), reason=registry_missing())
async def test_an_image_that_its_registry_does_not_have_is_the_tasks_fault(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with registry(tmp_path) as running:
        await running.push("evals/one")
        image = f"{running.address}/evals/one:nope"
        error = await refused(cluster, spec(image))
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
    assert image in error.detail
    assert "no such image or tag" in error.detail


@pytest.mark.requirement("K8-04")
@pytest.mark.skipif(bool(registry_missing()), reason=registry_missing())
async def test_a_pull_secret_that_is_not_there_is_named_as_the_mend(
    cluster: TestCluster, tmp_path: Path
) -> None:
    pod = PodOptions(fields=json.dumps({"imagePullSecrets": [{"name": "no-such"}]}))
    async with registry(tmp_path, private=True) as running:
        await running.push("evals/one")
        error = await refused(cluster, spec(f"{running.address}/evals/one:latest", pod=pod))
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
    assert "image_pull_secrets" in error.detail


@pytest.mark.requirement("K8-04")
@pytest.mark.slow
async def test_a_registry_that_does_not_answer_is_nobodys_task(cluster: TestCluster) -> None:
    error = await refused(cluster, spec("127.0.0.1:1/no/such:1"))
    assert (error.code, error.fault, error.mask) == (
        ErrorCode.IMAGE_UNAVAILABLE,
        Fault.INFRA,
        True,
    )
    assert "127.0.0.1:1/no/such:1" in error.detail


@pytest.mark.requirement("K8-04")
@pytest.mark.slow
async def test_a_guest_image_that_cannot_be_had_is_ours_to_mend(cluster: TestCluster) -> None:
    error = await refused(cluster, spec(), guest_image="127.0.0.1:1/guest:1")
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.INFRA)
    assert "backend.kubernetes.guest_image" in error.detail


async def test_what_the_server_refuses_of_a_template_is_the_tasks_fault(
    cluster: TestCluster,
) -> None:
    pod = PodOptions(fields=json.dumps({"tolerations": [{"operator": "Nonsense"}]}))
    error = await refused(cluster, spec(pod=pod))
    assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.TASK)
    assert "Nonsense" in error.detail


async def test_an_image_that_is_kept_from_being_pulled_and_not_there_is_said_at_once(
    cluster: TestCluster,
) -> None:
    error = await refused(cluster, replace(spec("sandboxd.test/nope:1"), pull="never"))
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)


async def test_isolation_that_is_not_enforced_is_refused_unless_it_is_accepted(
    cluster: TestCluster,
) -> None:
    isolated = replace(spec(), network=Network())
    error = await refused(cluster, isolated)
    assert error.code is ErrorCode.NOT_SUPPORTED
    assert "accept_unenforced_network" in error.detail
    async with backend_on(cluster) as backend:
        accepted = replace(isolated, pod=PodOptions(accept_unenforced_network=True))
        assert await backend.look(await backend.make(order(accepted))) is None
