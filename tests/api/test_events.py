"""Events over HTTP: followed, resumed, bounded to what a key may see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import service

Block = dict[str, str]


@contextmanager
def following(client: httpx.Client, *, last: str | None = None, **query: str) -> Iterator[Any]:
    """The blocks of a stream that is open, the first of which says where it begins."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", "/v1/events", params=query, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        yield blocks(response)


def blocks(response: httpx.Response) -> Iterator[Block]:
    fields: Block = {}
    for line in response.iter_lines():
        if line == "":
            yield fields
            fields = {}
        else:
            name, _, value = line.partition(":")
            fields[name or "comment"] = value.strip()


def until(stream: Iterator[Block], type_: str) -> list[dict[str, Any]]:
    """The events up to the first of that type, each with its id and type."""
    found: list[dict[str, Any]] = []
    for block in stream:
        if "data" in block:
            found.append({**json.loads(block["data"]), "id": block["id"], "type": block["event"]})
            if block["event"] == type_:
                return found
    raise AssertionError("the stream ended")


def lease_and_release(client: httpx.Client, **fields: Any) -> str:
    body = {"template": "python", **fields}
    sandbox_id: str = client.post("/v1/sandboxes", json=body).json()["id"]
    client.delete(f"/v1/sandboxes/{sandbox_id}")
    return sandbox_id


def test_what_happens_is_followed_as_it_happens(alice: httpx.Client) -> None:
    with following(alice, run_id="follow") as stream:
        assert set(next(stream)) == {"id"}
        sandbox_id = lease_and_release(
            alice, run_id="follow", rollout_id="o", secrets={"S": "hidden"}, env={"E": "hidden"}
        )
        told = until(stream, "lease.ended")
    leased, ended = told[-2:]
    assert (leased["type"], leased["sandbox_id"]) == ("lease.leased", sandbox_id)
    assert (ended["run_id"], ended["rollout_id"], ended["template"]) == ("follow", "o", "python")
    shown = alice.get(f"/v1/sandboxes/{sandbox_id}").json()["end"]
    assert ended["end"] == shown
    assert "hidden" not in json.dumps(told)


@pytest.mark.parametrize("way", ["header", "query"])
def test_one_who_comes_back_hears_what_it_missed(alice: httpx.Client, way: str) -> None:
    with following(alice, run_id="resume") as stream:
        next(stream)
        lease_and_release(alice, run_id="resume")
        seen = until(stream, "lease.leased")[-1]
    second = lease_and_release(alice, run_id="resume")
    query = {"after": seen["id"]} if way == "query" else {}
    last = seen["id"] if way == "header" else None
    with following(alice, last=last, run_id="resume", **query) as stream:
        told = until(stream, "lease.ended")
        assert [event["type"] for event in told] == ["lease.ended"]
        again = until(stream, "lease.ended")
    assert again[-1]["sandbox_id"] == second


def test_the_place_that_a_new_follower_is_given_loses_nothing(alice: httpx.Client) -> None:
    with following(alice, run_id="place") as stream:
        place = next(stream)["id"]
    sandbox_id = lease_and_release(alice, run_id="place")
    with following(alice, last=place, run_id="place") as stream:
        assert until(stream, "lease.leased")[-1]["sandbox_id"] == sandbox_id


def test_another_daemon_s_place_is_told_as_a_gap(alice: httpx.Client) -> None:
    lease_and_release(alice, run_id="gap")
    with following(alice, last="0000-7", run_id="gap") as stream:
        told = until(stream, "lease.ended")
    assert (told[0]["type"], told[0]["after"]) == ("gap", "0000-7")
    assert told[-1]["run_id"] == "gap"


def test_another_key_s_events_are_not_heard(alice: httpx.Client, bob: httpx.Client) -> None:
    with following(bob) as stream:
        next(stream)
        hers = lease_and_release(alice, run_id="hers")
        his = lease_and_release(bob, run_id="his")
        told = until(stream, "lease.ended")
    assert {event["sandbox_id"] for event in told if event["sandbox_id"]} == {his}
    assert hers != his


def test_a_lost_run_is_told(alice: httpx.Client) -> None:
    with following(alice, run_id="tells") as stream:
        alice.put("/v1/runs/tells/heartbeat", json={"ttl_s": 1})
        alice.post("/v1/sandboxes", json={"template": "python", "run_id": "tells"})
        told = until(stream, "lease.ended")
    assert [event["type"] for event in told][-2:] == ["run.lost", "lease.ended"]
    assert told[-1]["end"]["reason"] == "run_lost"
    alice.delete("/v1/runs/tells")


def test_what_makes_no_sense_is_refused(alice: httpx.Client) -> None:
    for query in ({"run_id": "a b"}, {"after": "x" * 65}, {"since": "1"}):
        assert alice.get("/v1/events", params=query).status_code == 422


def test_the_head_alone_is_answered(alice: httpx.Client) -> None:
    told = alice.head("/v1/events")
    assert (told.status_code, told.headers["cache-control"]) == (200, "no-store")


@pytest.mark.serial
@pytest.mark.timeout(60)
def test_a_daemon_that_stops_ends_the_streams_and_waits_for_none(tmp_path: Path) -> None:
    with (
        service(tmp_path, backend="fake") as daemon,
        httpx.Client(base_url=daemon.url) as client,
        following(client) as stream,
    ):
        next(stream)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 4, "it waits 5 s for calls that do not end"
        assert list(stream) == []  # whole: nothing was cut
