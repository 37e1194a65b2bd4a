"""Runs over HTTP: heartbeats, looks, ends; another key's are other runs."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

RUN_FIELDS = {"run_id", "state", "ttl_s", "began_at", "expires_at", "leased", "queued", "ended"}


def beat(client: httpx.Client, run_id: str, ttl_s: float = 60) -> httpx.Response:
    return client.put(f"/v1/runs/{run_id}/heartbeat", json={"ttl_s": ttl_s})


def lease(client: httpx.Client, **fields: object) -> dict[str, Any]:
    response = client.post("/v1/sandboxes", json={"template": "python", **fields})
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


def lost(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """A run that was heard of once, a second ago."""
    assert beat(client, run_id, ttl_s=1).status_code == 200
    deadline = time.monotonic() + 10
    while (run := client.get(f"/v1/runs/{run_id}").json())["state"] == "active":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return dict(run)


def test_a_run_begins_with_its_heartbeat_and_has_every_field(alice: httpx.Client) -> None:
    assert alice.get("/v1/runs/begins").status_code == 404
    told = beat(alice, "begins", ttl_s=60)
    assert told.status_code == 200
    body = told.json()
    assert set(body) == RUN_FIELDS
    assert body["expires_at"] - time.time() == pytest.approx(60, abs=5)
    sandbox = lease(alice, run_id="begins")
    alice.delete(f"/v1/sandboxes/{sandbox['id']}")
    held = lease(alice, run_id="begins")
    seen = alice.get("/v1/runs/begins").json()
    assert (seen["state"], seen["leased"], seen["queued"], seen["ended"]) == (
        "active", 1, 0, {"released": 1},
    )  # fmt: skip
    assert alice.delete("/v1/runs/begins").json() == {"released": [held["id"]], "failed": []}
    assert alice.get("/v1/runs/begins").status_code == 404
    assert alice.delete("/v1/runs/begins").json() == {"released": [], "failed": []}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("ok", {"ttl_s": 0.5}, "ttl_s"),
        ("ok", {"ttl_s": 3601}, "ttl_s"),
        ("ok", {"ttl_s": "soon"}, "ttl_s"),
        ("ok", {}, "ttl_s"),
        ("ok", {"ttl_s": 30, "grace": 1}, "grace"),
        ("a%20b", {"ttl_s": 30}, "run_id"),
        ("x" * 129, {"ttl_s": 30}, "run_id"),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused_by_its_field(
    alice: httpx.Client, path: str, body: dict[str, Any], field: str
) -> None:
    told = alice.put(f"/v1/runs/{path}/heartbeat", json=body)
    assert told.status_code == 422
    assert field in told.json()["detail"]


def test_a_lost_run_refuses_heartbeats_and_leases_until_it_is_deleted(
    alice: httpx.Client,
) -> None:
    beat(alice, "gone", ttl_s=1)
    held = lease(alice, run_id="gone", idempotency_key="gone-1")
    run = lost(alice, "gone")
    assert run["ended"] == {"run_lost": 1}
    assert run["expires_at"] <= time.time()
    end = alice.get(f"/v1/sandboxes/{held['id']}").json()["end"]
    assert (end["reason"], end["code"], end["fault"], end["mask"]) == (
        "run_lost", "lease_ended", "client", True,
    )  # fmt: skip
    command = alice.post(f"/v1/sandboxes/{held['id']}/execs", json={"cmd": "true"})
    assert (command.status_code, command.json()["details"]["end"]["reason"]) == (410, "run_lost")
    for told in (
        beat(alice, "gone"),
        alice.post("/v1/sandboxes", json={"template": "python", "run_id": "gone"}),
    ):
        assert (told.status_code, told.json()["code"]) == (409, "conflict")
        assert told.json()["details"]["state"] == "lost"
    same = {"template": "python", "run_id": "gone", "idempotency_key": "gone-1"}
    again = alice.post("/v1/sandboxes", json=same)
    assert (again.status_code, again.json()["id"]) == (200, held["id"])
    assert alice.delete("/v1/runs/gone").status_code == 200
    assert beat(alice, "gone").status_code == 200
    alice.delete("/v1/runs/gone")


def test_another_key_s_run_is_another_run(alice: httpx.Client, bob: httpx.Client) -> None:
    beat(alice, "shared-name")
    sandbox = lease(alice, run_id="shared-name")
    assert bob.get("/v1/runs/shared-name").status_code == 404
    assert bob.delete("/v1/runs/shared-name").json() == {"released": [], "failed": []}
    assert alice.get("/v1/runs/shared-name").json()["leased"] == 1
    beat(bob, "shared-name", ttl_s=30)
    assert bob.get("/v1/runs/shared-name").json()["leased"] == 0
    assert alice.get("/v1/runs/shared-name").json()["ttl_s"] == 60
    bob.delete("/v1/runs/shared-name")
    assert alice.delete("/v1/runs/shared-name").json()["released"] == [sandbox["id"]]


def test_runs_are_listed_newest_first_in_pages_and_lost_ones_when_asked_for(
    alice: httpx.Client, bob: httpx.Client
) -> None:
    for name in ("list-1", "list-2", "list-3"):
        beat(alice, name)
    first = alice.get("/v1/runs", params={"limit": 2}).json()
    rest = alice.get("/v1/runs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    names = [run["run_id"] for run in first["runs"] + rest["runs"]]
    assert [name for name in names if name.startswith("list-")] == ["list-3", "list-2", "list-1"]
    assert bob.get("/v1/runs").json()["runs"] == []
    lost(alice, "list-lost")
    assert "list-lost" not in [run["run_id"] for run in alice.get("/v1/runs").json()["runs"]]
    found = alice.get("/v1/runs", params={"state": "lost"}).json()["runs"]
    assert "list-lost" in [run["run_id"] for run in found]
    for name in ("list-1", "list-2", "list-3", "list-lost"):
        alice.delete(f"/v1/runs/{name}")


def test_a_token_knows_no_runs_and_no_events(alice: httpx.Client, sandbox: str) -> None:
    token = alice.post(f"{sandbox}/tokens", json={"rights": "use"}).json()["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    for path in ("/v1/runs", "/v1/runs/x", "/v1/events"):
        assert alice.get(path, headers=bearer).status_code == 404
    told = alice.put("/v1/runs/x/heartbeat", json={"ttl_s": 30}, headers=bearer)
    assert told.status_code == 404
