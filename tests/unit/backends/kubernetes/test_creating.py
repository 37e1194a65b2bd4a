"""What the API server is told to create, and how what it tells is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sandboxd.backends.kubernetes.creating import PodPlan, merged, pod_body, secret_body
from sandboxd.backends.kubernetes.objects import object_name, order_labels
from sandboxd.backends.kubernetes.pods import pod_from
from sandboxd.backends.kubernetes.records import record_of_pod, record_of_reference, reference
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec, Mount, Network, PodOptions, Resources

SPEC = BoxSpec(
    image="python:3.12-slim",
    resources=Resources(cpu=1.5, memory_mb=512, disk_mb=100),
    network=Network(),
)
TOKEN = "0123456789abcdef"


def plan(spec: BoxSpec = SPEC, **more: Any) -> PodPlan:
    order = BoxOrder(box_id="box-a1", spec=spec, labels={"pool": "python", "made_at": "12.5"})
    return PodPlan(
        order=order, installation="Inst_1", tag="instx1", guest_image="g:1", token=TOKEN, **more
    )


def main_of(body: dict[str, Any]) -> dict[str, Any]:
    (main,) = body["spec"]["containers"]
    found: dict[str, Any] = main
    return found


def test_the_token_is_in_the_secret_alone() -> None:
    assert TOKEN not in json.dumps(pod_body(plan()))
    assert TOKEN not in json.dumps(secret_body(plan()))  # it is encoded there


def test_limits_are_whole_and_requests_are_the_part_that_was_asked_for() -> None:
    amounts = main_of(pod_body(plan(cpu_request=0.5, memory_request=0.25)))["resources"]
    assert amounts["limits"] == {"cpu": "1500m", "memory": "512Mi", "ephemeral-storage": "116Mi"}
    assert (amounts["requests"]["cpu"], amounts["requests"]["memory"]) == ("750m", "128Mi")


def test_a_gpu_is_asked_for_by_the_clusters_name_of_it() -> None:
    wanted = replace(SPEC, resources=Resources(gpu=2), pod=PodOptions(gpu_resource="amd.com/gpu"))
    amounts = main_of(pod_body(plan(wanted)))["resources"]
    assert amounts["limits"]["amd.com/gpu"] == amounts["requests"]["amd.com/gpu"] == "2"


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("", {"type": "RuntimeDefault"}),
        ("ours.json", {"type": "Localhost", "localhostProfile": "ours.json"}),
    ],
)
def test_system_calls_are_filtered_by_the_node_or_by_a_profile_on_it(
    profile: str, told: dict[str, str]
) -> None:
    spec = pod_body(plan(seccomp_profile=profile))["spec"]
    assert spec["securityContext"] == {"seccompProfile": told}


def test_a_templates_fields_join_ours_and_never_replace_them() -> None:
    fields = {"restartPolicy": "Always", "tolerations": [{"key": "a"}], "dnsPolicy": "Default"}
    wanted = replace(SPEC, pod=PodOptions(fields=json.dumps(fields)), runtime="kata")
    spec = pod_body(plan(wanted))["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"]) == ("Never", "Default")
    assert (spec["tolerations"], spec["runtimeClassName"]) == ([{"key": "a"}], "kata")


def test_tables_are_merged_and_lists_are_joined() -> None:
    under = {"a": {"x": 1, "y": 1}, "l": [1], "s": "under"}
    over = {"a": {"y": 2}, "l": [2], "s": "over"}
    assert merged(under, over) == {"a": {"x": 1, "y": 2}, "l": [2, 1], "s": "over"}


def test_mounts_of_the_template_are_read_only_unless_it_says_otherwise() -> None:
    wanted = replace(SPEC, mounts=(Mount(source="/data/sets", target="/data"),))
    body = pod_body(plan(wanted))
    assert {"name": "mount-0", "hostPath": {"path": "/data/sets"}} in body["spec"]["volumes"]
    mounts = main_of(body)["volumeMounts"]
    assert {"name": "mount-0", "mountPath": "/data", "readOnly": True} in mounts


def test_a_pod_that_is_read_back_has_what_it_was_ordered_with() -> None:
    body = pod_body(plan())
    body["metadata"]["uid"] = "u-1"
    body["status"] = {"phase": "Running", "podIP": "10.0.0.9"}
    pod = pod_from(body)
    assert order_labels(pod.annotations) == {"pool": "python", "made_at": "12.5"}
    record = record_of_pod(pod)
    assert (record.memory_limit_bytes, record.disk_limit_bytes) == (512 << 20, 100 << 20)
    assert record_of_reference(reference(record)) == record


def test_an_id_that_cannot_name_a_pod_is_refused() -> None:
    with pytest.raises(SandboxdError):
        object_name("t", "Box_1")


def test_a_pod_has_the_secrets_of_all_pods_and_its_templates_own() -> None:
    own = PodOptions(fields=json.dumps({"imagePullSecrets": [{"name": "theirs"}]}))
    spec = pod_body(plan(replace(SPEC, pod=own), image_pull_secrets=("ours",)))["spec"]
    assert spec["imagePullSecrets"] == [{"name": "ours"}, {"name": "theirs"}]
    assert "imagePullSecrets" not in pod_body(plan())["spec"]


@pytest.mark.parametrize(
    ("started_at", "has_run"),
    [
        (None, False),
        ("1970-01-01T00:00:00Z", False),
        ("2026-11-30T12:00:00Z", True),
    ],
)
def test_a_container_that_its_node_made_and_never_started_has_not_run(
    started_at: str | None, *, has_run: bool
) -> None:
    """A kubelet that was killed in between counts it as ended, with 0."""
    body = pod_body(plan())
    body["metadata"]["uid"] = "u-1"
    ended = {"terminated": {"exitCode": 0, "startedAt": started_at, "reason": "Completed"}}
    statuses = [{"name": "sandbox", "state": ended}]
    body["status"] = {"phase": "Succeeded", "containerStatuses": statuses}
    end = pod_from(body).end
    assert end is not None
    assert (end.exit_code, end.has_run) == (0, has_run)
