"""Groups over HTTP: shapes, names, refusals, and what other keys see."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sandboxd_client import AsyncSandboxd, BadRequest, Capacity, Sandboxd


def group(alice: httpx.Client, **body: Any) -> httpx.Response:
    return alice.post("/v1/groups", json={"template": "python", **body})


def release(alice: httpx.Client, group_id: str) -> None:
    assert alice.delete(f"/v1/groups/{group_id}").status_code == 200


def test_a_group_is_made_found_and_released(alice: httpx.Client) -> None:
    made = group(alice, count=3, rollout_ids=["r0", "r1", "r2"], run_id="run")
    assert made.status_code == 201, made.text
    body = made.json()
    assert set(body) == {"group_id", "sandboxes"}
    assert [s["rollout_id"] for s in body["sandboxes"]] == ["r0", "r1", "r2"]
    assert {(s["state"], s["run_id"], s["group_id"]) for s in body["sandboxes"]} == {
        ("leased", "run", body["group_id"])
    }
    found = alice.get(f"/v1/groups/{body['group_id']}").json()
    ids = [s["id"] for s in body["sandboxes"]]
    assert [s["id"] for s in found["sandboxes"]] == ids
    listed = alice.get("/v1/sandboxes", params={"group_id": body["group_id"]}).json()
    assert {s["id"] for s in listed["sandboxes"]} == set(ids)
    released = alice.delete(f"/v1/groups/{body['group_id']}").json()
    assert set(released["released"]) == set(ids)
    again = alice.delete(f"/v1/groups/{body['group_id']}")
    assert (again.status_code, again.json()["failed"]) == (200, [])


@pytest.mark.parametrize("name", ["group_id", "idempotency_key"])
def test_the_same_name_gives_the_same_group_and_another_body_a_conflict(
    alice: httpx.Client, name: str
) -> None:
    first = group(alice, count=2, **{name: f"mine-{name}"})
    again = group(alice, count=2, **{name: f"mine-{name}"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert [s["id"] for s in again.json()["sandboxes"]] == [
        s["id"] for s in first.json()["sandboxes"]
    ]
    other = group(alice, count=3, **{name: f"mine-{name}"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    release(alice, first.json()["group_id"])
    ended = group(alice, count=2, **{name: f"mine-{name}"})
    assert ended.status_code == 200
    assert {s["end"]["reason"] for s in ended.json()["sandboxes"]} == {"released"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"count": 0},
        {"count": -1},
        {"count": 21},  # over the pool's max
        {"count": 10**6},
        {"count": 1.5},
        {"count": 2, "rollout_ids": ["one"]},
        {"count": 1, "rollout_ids": ["not an id"]},
        {"count": 2, "rollout_ids": ["a", "b"], "rollout_id": "c"},
        {"count": 1, "group_id": "a", "idempotency_key": "b"},
        {"count": 1, "members": 2},
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    alice: httpx.Client, body: dict[str, Any]
) -> None:
    refused = group(alice, **body)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_request"), refused.text
    assert alice.get("/v1/sandboxes", params={"state": "queued"}).json()["sandboxes"] == []


def test_a_group_that_waits_is_answered_with_its_places(alice: httpx.Client) -> None:
    held = alice.post("/v1/sandboxes", json={"template": "small"}).json()
    waits = group(alice, template="small", count=1, wait=False, group_id="waits")
    assert waits.status_code == 202
    (sandbox,) = waits.json()["sandboxes"]
    assert sandbox["state"] == "queued"
    assert sandbox["queue"]["position"] == 0
    assert sandbox["queue"]["expected_wait_s"] > 0
    full = group(alice, template="small", count=1)
    assert (full.status_code, full.json()["code"]) == (503, "capacity")
    assert full.headers["retry-after"].isdigit()
    assert isinstance(full.json()["retry_after_s"], float)
    alice.delete(f"/v1/sandboxes/{held['id']}")
    served = alice.get("/v1/groups/waits", params={"wait_s": 10}).json()
    assert served["sandboxes"][0]["state"] == "leased"
    release(alice, "waits")


def test_another_key_s_group_is_not_found_and_its_name_is_free(
    alice: httpx.Client, bob: httpx.Client
) -> None:
    made = group(alice, count=1, group_id="shared-name").json()
    assert bob.get("/v1/groups/shared-name").status_code == 404
    assert bob.delete("/v1/groups/shared-name").status_code == 404
    his = group(bob, count=1, group_id="shared-name")
    assert his.status_code == 201
    assert his.json()["sandboxes"][0]["id"] != made["sandboxes"][0]["id"]
    release(alice, "shared-name")
    assert bob.get("/v1/groups/shared-name").json()["sandboxes"][0]["state"] == "leased"
    release(bob, "shared-name")


def test_silly_sizes_of_a_pool_are_refused(alice: httpx.Client) -> None:
    for change in ({"ready": 10**6}, {"max": 10**6}, {"ready": 21}, {"starting": 10**6}):
        refused = alice.patch("/v1/pools/python", json=change)
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_request"), change


def test_a_pool_says_how_its_makes_go(alice: httpx.Client) -> None:
    pools = alice.get("/v1/pools").json()["pools"]
    assert {pool["state"] for pool in pools} == {"ok"}


def test_the_sdk_leases_a_group_and_releases_it_with_its_block(url: str) -> None:
    with Sandboxd(url=url, key="alice-secret-key") as client:
        with client.group("python", count=4, rollout_ids=["a", "b", "c", "d"]) as sandboxes:
            assert len(sandboxes) == 4
            assert [s.granted.rollout_id for s in sandboxes if s.granted] == ["a", "b", "c", "d"]
            assert {s.exec("true").exit_code for s in sandboxes} == {0}
            assert sandboxes[-1] is list(sandboxes)[3]
            ids = {sandbox.id for sandbox in sandboxes}
            assert {info.id for info in client.sandboxes(group_id=sandboxes.id)} == ids
        assert client.sandboxes(group_id=sandboxes.id) == []
        held = client.group("python", count=2, group_id="held-by-name")
        group = held.__enter__()
        again = client.group("python", count=2, group_id="held-by-name").__enter__()
        assert [s.id for s in again] == [s.id for s in group]
        released = group.release().released
        assert isinstance(released, list)
        assert set(released) == {s.id for s in group}


@pytest.mark.anyio
async def test_the_asynchronous_sdk_says_why_there_is_no_group(url: str) -> None:
    async with AsyncSandboxd(url=url, key="alice-secret-key") as client:
        with pytest.raises(BadRequest):
            await client.group("python", count=1000)
        async with client.group("python", count=20):
            with pytest.raises(Capacity):
                await client.group("python", count=2, wait_timeout_s=0.5)
