"""Leases over HTTP: shapes, lists, idempotency, queues."""

from __future__ import annotations

import httpx
import pytest

SANDBOX_FIELDS = {
    "id", "template", "image", "state", "phase", "queue", "created_at", "leased_at", "expires_at",
    "idle_expires_at", "run_id", "group_id", "rollout_id", "labels", "backend", "warm",
    "cold_because", "lease_wait_s", "limits", "endpoint", "end", "usage",
}  # fmt: skip


def lease(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/v1/sandboxes", json={"template": "python", **fields})


def test_a_lease_has_every_field_of_the_contract(alice: httpx.Client) -> None:
    response = lease(alice, labels={"a": "b"}, run_id="r1", rollout_id="x", timeout_s=60)
    assert response.status_code == 201
    body = response.json()
    assert set(body) >= SANDBOX_FIELDS
    assert body["state"] == "leased"
    assert body["labels"] == {"a": "b"}
    assert body["expires_at"] - body["leased_at"] == pytest.approx(60)
    assert set(body["usage"]) == {
        "cpu_s", "memory_peak_bytes", "disk_bytes", "execs", "cells", "leased_s",
        "network_in_bytes", "network_out_bytes",
    }  # fmt: skip
    path = f"/v1/sandboxes/{body['id']}"
    assert alice.delete(path, params={"wait_s": 10}).json()["state"] == "ended"
    ended = alice.delete(path)
    assert ended.status_code == 200
    assert ended.json()["end"]["reason"] == "released"
    gone = alice.post(f"{path}/execs", json={"cmd": "true"})
    assert gone.status_code == 410
    assert gone.json()["code"] == "lease_ended"
    assert gone.json()["details"]["end"]["reason"] == "released"


def test_the_template_s_environment_reaches_commands(alice: httpx.Client, sandbox: str) -> None:
    run = alice.post(f"{sandbox}/execs", json={"cmd": ["printenv", "FROM_TEMPLATE"]})
    assert run.json()["stdout"] == "yes\n"


def test_lists_filter_by_run_and_every_label_and_page(alice: httpx.Client) -> None:
    ids = [
        lease(alice, run_id="list", labels={"n": str(i), "all": "1"}).json()["id"] for i in range(3)
    ]
    found = alice.get("/v1/sandboxes", params={"run_id": "list"}).json()
    assert [s["id"] for s in found["sandboxes"]] == ids[::-1]
    assert found["next_cursor"] is None
    both = alice.get("/v1/sandboxes?label=all%3D1&label=n%3D1").json()["sandboxes"]
    assert [s["id"] for s in both] == [ids[1]]
    page = alice.get("/v1/sandboxes", params={"run_id": "list", "limit": 2}).json()
    rest = alice.get(
        "/v1/sandboxes", params={"run_id": "list", "limit": 2, "cursor": page["next_cursor"]}
    ).json()
    assert [s["id"] for s in page["sandboxes"] + rest["sandboxes"]] == ids[::-1]
    assert alice.get("/v1/sandboxes", params={"label": "nonsense"}).status_code == 422
    assert alice.delete("/v1/sandboxes").status_code == 422
    released = alice.delete("/v1/sandboxes", params={"run_id": "list"}).json()
    assert sorted(released["released"]) == sorted(ids)
    assert released["failed"] == []
    assert alice.get("/v1/sandboxes", params={"run_id": "list"}).json()["sandboxes"] == []
    ended = alice.get("/v1/sandboxes", params={"run_id": "list", "state": "ended"}).json()
    assert {s["id"] for s in ended["sandboxes"]} <= set(ids)


def test_the_same_idempotency_key_is_the_same_sandbox(alice: httpx.Client) -> None:
    first = lease(alice, idempotency_key="same")
    second = lease(alice, idempotency_key="same")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert lease(alice, idempotency_key="same", env={"A": "1"}).status_code == 409
    alice.delete(f"/v1/sandboxes/{first.json()['id']}")


def test_a_lease_that_is_not_waited_for_queues_and_can_leave(alice: httpx.Client) -> None:
    small = {"template": "small"}
    holder = alice.post("/v1/sandboxes", json=small).json()["id"]
    queued = alice.post("/v1/sandboxes", json={**small, "wait": False})
    assert queued.status_code == 202
    body = queued.json()
    assert body["state"] == "queued"
    assert body["queue"]["position"] == 0
    early = alice.post(f"/v1/sandboxes/{body['id']}/execs", json={"cmd": "true"})
    assert (early.status_code, early.json()["code"]) == (409, "conflict")
    full = alice.post("/v1/sandboxes", json=small)
    assert (full.status_code, full.json()["code"]) == (503, "capacity")
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["details"]["position"] == 1
    alice.delete(f"/v1/sandboxes/{holder}")
    path = f"/v1/sandboxes/{body['id']}"
    assert alice.get(path, params={"wait_s": 10}).json()["state"] == "leased"
    second = alice.post("/v1/sandboxes", json={**small, "wait": False}).json()["id"]
    left = alice.delete(f"/v1/sandboxes/{second}")
    assert left.status_code == 200
    assert left.json()["state"] == "ended"
    alice.delete(path, params={"wait_s": 10})


def test_waiting_is_bounded_by_wait_timeout(alice: httpx.Client) -> None:
    small = {"template": "small"}
    holder = alice.post("/v1/sandboxes", json=small).json()["id"]
    refused = alice.post("/v1/sandboxes", json={**small, "wait_timeout_s": 0.2})
    assert (refused.status_code, refused.json()["code"]) == (503, "capacity")
    assert refused.json()["retry_safe"] is True
    alice.delete(f"/v1/sandboxes/{holder}", params={"wait_s": 10})


def test_pools_and_templates_are_shown_and_adjusted(alice: httpx.Client) -> None:
    pools = {pool["template"]: pool for pool in alice.get("/v1/pools").json()["pools"]}
    assert set(pools["python"]) >= {
        "template", "ready", "making", "leased", "disposing", "queued", "target", "max",
        "last_error",
    }  # fmt: skip
    changed = alice.patch("/v1/pools/small", json={"max": 3, "paused": True}).json()
    assert (changed["max"], changed["paused"]) == (3, True)
    assert alice.patch("/v1/pools/small", json={"max": 1_000_000}).status_code == 422
    assert alice.patch("/v1/pools/small", json={"ready": 50}).status_code == 422
    assert alice.patch("/v1/pools/none", json={}).status_code == 404
    alice.patch("/v1/pools/small", json={"max": 1, "paused": False})
    names = {template["name"] for template in alice.get("/v1/templates").json()["templates"]}
    assert names == {"python", "small"}


def test_files_given_with_the_lease_are_there(alice: httpx.Client) -> None:
    files = {"a/b.txt": {"text": "héllo"}, "/tmp/x.bin": {"data_b64": "AAH/", "mode": 0o600}}
    made = lease(alice, files=files)
    assert made.status_code == 201, made.text
    path = f"/v1/sandboxes/{made.json()['id']}"
    assert alice.get(f"{path}/files", params={"path": "a/b.txt"}).text == "héllo"
    assert alice.get(f"{path}/files", params={"path": "/tmp/x.bin"}).content == b"\x00\x01\xff"
    assert alice.get(f"{path}/files/stat", params={"path": "/tmp/x.bin"}).json()["mode"] == 0o600
    alice.delete(path)


def test_renewing_moves_the_end(alice: httpx.Client, sandbox: str) -> None:
    before = alice.get(sandbox).json()["expires_at"]
    renewed = alice.post(f"{sandbox}/renew", json={"timeout_s": 7200}).json()
    assert renewed["expires_at"] > before + 3000
    assert alice.post(f"{sandbox}/renew", json={"timeout_s": 1e7}).status_code == 422
    most = alice.post(f"{sandbox}/renew", json={"timeout_s": None}).json()
    assert most["expires_at"] > renewed["expires_at"]


def test_the_diary_tells_what_happened(alice: httpx.Client, sandbox: str) -> None:
    events = alice.get(f"{sandbox}/logs").text.splitlines()
    assert '"event":"leased"' in events[0]


def test_a_lease_runs_its_first_command_from_the_beginning(alice: httpx.Client) -> None:
    body = {"template": "python", "start": ["sh", "-c", "echo began"]}
    path = f"/v1/sandboxes/{alice.post('/v1/sandboxes', json=body).json()['id']}"
    first = alice.get(f"{path}/execs/start", params={"wait_s": 10}).json()
    assert (first["outcome"], first["stdout"]) == ("exited", "began\n")
    alice.delete(path)


def test_a_first_command_that_cannot_begin_is_told_in_its_record(alice: httpx.Client) -> None:
    body = {"template": "python", "start": ["/not/there"]}
    made = alice.post("/v1/sandboxes", json=body)
    assert made.status_code == 201
    path = f"/v1/sandboxes/{made.json()['id']}"
    first = alice.get(f"{path}/execs/start").json()
    assert (first["outcome"], first["error"]["reason"]) == ("start_failed", "not_found")
    alice.delete(path)
