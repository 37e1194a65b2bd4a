"""The control plane of Prime's dialects: what it shows, keeps, refuses, and whose it is."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.daemon import run_daemon

SANDBOX = {"name": "Env__One", "docker_image": "python:3.11-slim", "vm": True}
API = "/api/v1/sandbox"

CONFIG = """
[compat.prime]
images = {"python:3.11-slim" = "python", "tiny:1" = "small"}

[templates.python]
image = "host"
resources = {cpu = 2.0, memory_mb = 4096, disk_mb = 8192}
pool = {ready = 1, max = 20}

[templates.small]
image = "small"
resources = {cpu = 2.0, memory_mb = 4096, disk_mb = 8192}
max_timeout_s = 7200
pool = {ready = 0, max = 1, queue = 1}
"""


@pytest.fixture(scope="module")
def prime_url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("prime")
    keys = '[server]\napi_keys = [{name = "a", key = "a-key"}, {name = "b", key = "b-key"}]\n'
    with run_daemon(place, config=keys + CONFIG) as daemon:
        yield daemon.url


@pytest.fixture
def prime(prime_url: str) -> Any:
    headers = {"Authorization": "Bearer a-key"}
    with httpx.Client(base_url=prime_url, headers=headers, timeout=15) as client:
        yield client
        ids = [each["id"] for each in client.get(API).json()["sandboxes"]]
        if ids:
            client.request("DELETE", API, json={"sandbox_ids": ids})


def create(prime: httpx.Client, **more: Any) -> dict[str, Any]:
    made = prime.post(API, json={**SANDBOX, **more})
    assert made.status_code == 200, made.text
    body: dict[str, Any] = made.json()
    return body


def test_a_create_is_answered_with_a_running_sandbox_from_warm_stock(prime: httpx.Client) -> None:
    """Of which a template serves whoever asks for less than it has."""
    made = create(prime, cpu_cores=1.0, memory_gb=2.0, disk_size_gb=5.0, labels=["x", "y"])
    ours = prime.get(f"/v1/sandboxes/{made['id']}").json()
    assert (ours["template"], ours["cold_because"]) == ("python", [])
    assert (made["status"], made["vm"], made["name"]) == ("RUNNING", True, "Env__One")
    assert (made["labels"], made["dockerImage"]) == (["x", "y"], "python:3.11-slim")
    assert (made["cpuCores"], made["memoryGB"]) == (2.0, 4.0)
    assert made["gatewayAuth"]["gateway_url"].endswith("/v1/sandboxes")


def test_more_than_the_template_has_is_made_and_not_pretended(prime: httpx.Client) -> None:
    made = create(prime, memory_gb=6.0)
    assert made["memoryGB"] == 6.0
    assert prime.get(f"/v1/sandboxes/{made['id']}").json()["cold_because"] == ["resources"]


def test_a_full_house_answers_pending_at_once_and_runs_later(prime: httpx.Client) -> None:
    first = create(prime, docker_image="tiny:1")
    second = create(prime, docker_image="tiny:1")
    assert second["status"] == "PENDING"
    prime.delete(f"{API}/{first['id']}")
    waited = prime.get(f"/v1/sandboxes/{second['id']}", params={"wait_s": 10}).json()
    assert waited["state"] == "leased"
    asked = {"sandbox_ids": [second["id"], first["id"], "sbx-nobody"]}
    told = prime.post(f"{API}/status:batchGet", json=asked).json()
    statuses = {each["sandbox_id"]: each["status"] for each in told["statuses"]}
    assert statuses == {second["id"]: "RUNNING", first["id"]: "TERMINATED"}
    assert [each["code"] for each in told["errors"]] == ["NOT_FOUND"]


def test_an_unlimited_life_has_the_templates_most(prime: httpx.Client) -> None:
    made = create(prime, docker_image="tiny:1", timeout_minutes=-1)
    assert made["timeoutMinutes"] == 120
    refused = prime.post(API, json={**SANDBOX, "docker_image": "tiny:1", "timeout_minutes": 121})
    assert (refused.status_code, "7200" in refused.json()["detail"]) == (422, True)


@pytest.mark.requirement("LC-10")
def test_the_same_key_makes_the_same_sandbox_even_after_its_end(prime: httpx.Client) -> None:
    first = create(prime, idempotency_key="k1")
    assert create(prime, idempotency_key="k1")["id"] == first["id"]
    prime.delete(f"{API}/{first['id']}")
    again = create(prime, idempotency_key="k1")
    assert (again["id"], again["status"]) == (first["id"], "TERMINATED")


def test_variables_and_secrets_are_never_shown(prime: httpx.Client) -> None:
    made = create(prime, environment_vars={"A": "hidden-1"}, secrets={"B": "hidden-2"})
    for path in (f"{API}/{made['id']}", f"{API}/{made['id']}/logs", API):
        assert "hidden-" not in prime.get(path).text


def test_lists_filter_by_labels_and_status_in_pages(prime: httpx.Client) -> None:
    ids = [create(prime, labels=["page", f"n{number}"])["id"] for number in range(3)]
    prime.delete(f"{API}/{ids[0]}")
    active = prime.get(API, params={"labels": "page", "is_active": "true", "per_page": 1}).json()
    assert (active["total"], active["hasNext"], len(active["sandboxes"])) == (2, True, 1)
    assert active["sandboxes"][0]["id"] == ids[2]
    ended = prime.get(API, params={"labels": "page", "status": "TERMINATED"}).json()
    assert [each["id"] for each in ended["sandboxes"]] == [ids[0]]
    both = prime.get(API, params={"labels": ["page", "n1"]}).json()
    assert [each["id"] for each in both["sandboxes"]] == [ids[1]]


def test_many_are_deleted_by_id_or_label_and_strangers_stop_nothing(prime: httpx.Client) -> None:
    by_label = [create(prime, labels=["gone"])["id"] for _ in range(2)]
    by_id = create(prime)["id"]
    asked = {"sandbox_ids": [by_id, "sbx-nobody"], "labels": ["gone"]}
    told = prime.request("DELETE", API, json=asked).json()
    assert sorted(told["succeeded"]) == sorted([*by_label, by_id])
    assert [each["sandbox_id"] for each in told["failed"]] == ["sbx-nobody"]
    assert prime.request("DELETE", API, json={}).status_code == 422
    assert prime.delete(f"{API}/{by_id}").status_code == 200


def test_another_keys_sandbox_is_not_there(prime: httpx.Client, prime_url: str) -> None:
    made = create(prime)
    path = f"{API}/{made['id']}"
    gate = f"/v1/sandboxes/{made['id']}/prime"
    headers = {"Authorization": "Bearer b-key"}
    with httpx.Client(base_url=prime_url, headers=headers, timeout=15) as other:
        told = [
            other.get(path),
            other.delete(path),
            other.post(f"{path}/auth"),
            other.get(f"{path}/error-context"),
            other.get(f"{path}/egress-policy"),
            other.get(f"{path}/expose"),
        ]
        assert {each.status_code for each in told} == {404}
        executed = other.post(f"{gate}/exec", json={"command": "true"})
        assert (executed.status_code, executed.json()["error"]) == (502, "sandbox_not_found")
        started = other.post(
            f"{gate}/command_session.CommandSession/List",
            headers={"Content-Type": "application/proto"},
        )
        assert (started.status_code, started.json()["code"]) == (404, "not_found")


def test_the_gateways_key_opens_one_sandbox_and_nothing_else(
    prime: httpx.Client, prime_url: str
) -> None:
    mine, other = create(prime), create(prime)
    auth = prime.post(f"{API}/{mine['id']}/auth").json()
    headers = {"Authorization": f"Bearer {auth['token']}"}
    with httpx.Client(base_url=prime_url, headers=headers, timeout=15) as bearer:
        gate = f"{auth['gateway_url']}/{auth['user_ns']}/{auth['job_id']}"
        wrong = gate.replace(mine["id"], other["id"])
        query = {"path": "/nothing"}
        assert bearer.get(f"{gate}/read-file", params=query).status_code == 404
        assert bearer.get(f"{wrong}/read-file", params=query).status_code == 404
        assert bearer.delete(f"{API}/{mine['id']}").status_code == 404


def test_what_is_not_here_is_refused_by_a_status_that_changes_no_client(
    prime: httpx.Client,
) -> None:
    """A 404 or 405 of a batch has clients fall back on other ways for good."""
    made = create(prime)["id"]
    refused = [
        prime.post(f"{API}/{made}/checkpoints"),
        prime.post(f"{API}/checkpoints:batchGet", json={"checkpoint_ids": ["c"]}),
        prime.get(f"{API}/checkpoints/c"),
        prime.get(f"{API}/volumes"),
        prime.get(f"{API}/networks"),
        prime.put(f"{API}/networks/n/rules", json={}),
        prime.post(f"{API}/{made}/ssh-session", json={"public_key": "k"}),
        prime.get("/api/v1/images"),
        prime.post(API, json={"name": "x", "checkpoint_id": "c"}),
        prime.post(API, json={**SANDBOX, "volumes": [{"name": "v", "mount_path": "/v"}]}),
        prime.post(API, json={**SANDBOX, "network_denylist": ["bad.example"]}),
        prime.post(f"{API}/{made}/expose", json={"port": 80, "protocol": "TCP"}),
    ]
    assert [each.status_code for each in refused] == [501] * len(refused)
    assert all(each.json()["detail"] for each in refused)


def test_ports_are_exposed_under_addresses_that_need_no_header(prime: httpx.Client) -> None:
    made = create(prime)["id"]
    told = prime.post(f"{API}/{made}/expose", json={"port": 8000, "name": "web"}).json()
    assert told["url"].endswith("/ports/8000/")
    assert prime.get(f"{API}/{made}/expose").json()["exposures"] == [told]
    assert told in prime.get(f"{API}/expose/all").json()["exposures"]
    assert prime.delete(f"{API}/{made}/expose/{told['exposure_id']}").status_code == 200
    assert prime.get(f"{API}/{made}/expose").json()["exposures"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_cores": 0},
        {"timeout_minutes": 0},
        {"labels": ["x" * 300]},
        {"unheard_of": 1},
        {"network_allowlist": [], "network_denylist": []},
        {"environment_vars": {"": "x"}},
    ],
)
def test_bad_creates_are_told_what_is_wrong(prime: httpx.Client, wrong: dict[str, Any]) -> None:
    refused = prime.post(API, json={**SANDBOX, **wrong})
    assert refused.status_code == 422
    assert json.loads(refused.text)["detail"]
