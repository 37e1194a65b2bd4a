"""Leases over HTTP on real sandboxes: lists, ends, retries, readings, and what the daemon tells."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.contract.speaker import Speaker, eventually, problem

METRICS = {
    "sandboxd_leases_granted_total": {"pool"},
    "sandboxd_lease_wait_seconds": set(),
    "sandboxd_sandboxes": {"pool", "state"},
    "sandboxd_sandboxes_ended_total": {"pool", "reason"},
    "sandboxd_make_seconds": {"backend"},
    "sandboxd_exec_seconds": set(),
    "sandboxd_cell_seconds": {"outcome"},
    "sandboxd_queue_length": {"pool"},
    "sandboxd_runs": {"state"},
    "sandboxd_leaks_swept_total": set(),
    "sandboxd_faults_total": {"fault", "code"},
    "sandboxd_store_write_seconds": set(),
    "sandboxd_event_loop_lag_seconds": set(),
    "sandboxd_attached": set(),
    "sandboxd_detached_total": {"code"},
    "sandboxd_port_connections": {"kind"},
    "sandboxd_mcp_call_seconds": {"server", "outcome"},
    "sandboxd_mcp_restarts_total": {"server"},
    "sandboxd_mcp_servers": {"server"},
    "sandboxd_way_out_connections_total": {"kind"},
    "sandboxd_way_out_bytes_total": {"direction"},
}
CLOSED: dict[str, set[str]] = {
    "pool": {"python", "broken", "user"},
    "state": {"ready", "making", "leased", "disposing", "active", "lost"},
    "reason": set(EndReason),
    "backend": {"local", "docker", "kubernetes"},
    "kind": {"proxy", "forward", "refused", "http", "websocket"},
    "direction": {"in", "out"},
    "fault": set(Fault),
    "code": set(ErrorCode),
}


def lease(http: httpx.Client, **fields: object) -> Speaker:
    made = http.post("/v1/sandboxes", json={"template": "python", **fields})
    assert made.status_code == 201, made.text
    return Speaker(http, f"/v1/sandboxes/{made.json()['id']}")


def test_a_released_lease_is_out_of_the_list_at_once(http: httpx.Client) -> None:
    """Its container may still be going; `state=` shows it."""
    gone = lease(http, run_id="gone")
    assert http.delete(gone.path).status_code == 200
    assert http.get("/v1/sandboxes?run_id=gone").json()["sandboxes"] == []
    assert http.delete(gone.path, params={"wait_s": 10}).json()["state"] == "ended"
    found = http.get("/v1/sandboxes?run_id=gone&state=ended").json()["sandboxes"]
    assert [f"/v1/sandboxes/{one['id']}" for one in found] == [gone.path]


def test_pages_of_a_list_go_on_though_their_last_entry_has_ended(http: httpx.Client) -> None:
    made = [lease(http, run_id="pages") for _ in range(5)]
    query: dict[str, str | int] = {"run_id": "pages", "limit": 2}
    first = http.get("/v1/sandboxes", params=query).json()
    http.delete(f"/v1/sandboxes/{first['sandboxes'][-1]['id']}")
    rest = http.get("/v1/sandboxes", params={**query, "limit": 9, "cursor": first["next_cursor"]})
    shown = [one["id"] for one in first["sandboxes"] + rest.json()["sandboxes"]]
    assert [f"/v1/sandboxes/{one}" for one in shown] == [one.path for one in made[::-1]]
    problem(http.get("/v1/sandboxes?cursor=nonsense"), 422, "bad_request")
    for limit in (0, 1001, "x"):
        problem(http.get(f"/v1/sandboxes?limit={limit}"), 422, "bad_request")
    told = http.delete("/v1/sandboxes?run_id=pages").json()
    assert (len(told["released"]), told["failed"]) == (4, [])


def test_filters_release_what_matches_all_of_them(http: httpx.Client) -> None:
    both = lease(http, run_id="f", group_id="g", labels={"a": "1", "b": "2"})
    other = lease(http, run_id="f", labels={"a": "1"})
    for query, hit in (
        ("run_id=f&label=a=1&label=b=3", []),
        ("run_id=other&label=a=1", []),
        ("group_id=g&label=a=1&label=b=2", [both]),
        ("label=a=1", [other]),
    ):
        told = http.delete(f"/v1/sandboxes?{query}").json()
        assert [f"/v1/sandboxes/{one}" for one in told["released"]] == [one.path for one in hit]


@pytest.mark.requirement("HT-03")
def test_one_key_makes_one_sandbox_also_at_once_and_after_its_end(http: httpx.Client) -> None:
    body = {"template": "python", "idempotency_key": "retry-1", "env": {"A": "1"}}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/sandboxes", json=body), range(10)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    path = f"/v1/sandboxes/{answers[0].json()['id']}"
    problem(http.post("/v1/sandboxes", json={**body, "env": {"A": "2"}}), 409, "conflict")
    http.delete(path, params={"wait_s": 10})
    again = http.post("/v1/sandboxes", json=body)
    assert (again.status_code, again.json()["id"]) == (200, answers[0].json()["id"])
    assert (again.json()["state"], again.json()["end"]["reason"]) == ("ended", "released")


def test_an_ended_lease_answers_everything_with_the_same_end(http: httpx.Client) -> None:
    gone = lease(http)
    exec_id = gone.start("sleep 60")
    end = http.delete(gone.path, params={"wait_s": 10}).json()["end"]
    assert (end["reason"], end["code"], end["fault"], end["mask"]) == (
        "released",
        None,
        None,
        False,
    )
    for method, rest, body in (
        ("POST", "/execs", {"cmd": "true"}),
        ("GET", "/execs", None),
        ("GET", f"/execs/{exec_id}", None),
        ("GET", f"/execs/{exec_id}/events", None),
        ("GET", f"/execs/{exec_id}/output", None),
        ("POST", f"/execs/{exec_id}/stdin", None),
        ("POST", f"/execs/{exec_id}/signal", {"signal": "KILL"}),
        ("GET", "/files?path=x", None),
        ("PUT", "/files?path=x", None),
        ("GET", "/files/list?path=x", None),
        ("GET", "/files/archive?path=x", None),
        ("POST", "/shells", {}),
        ("GET", "/shells", None),
        ("POST", "/renew", {}),
        ("POST", "/grading", {"timeout_s": 1}),
        ("POST", "/tokens", {}),
    ):
        told = problem(http.request(method, gone.path + rest, json=body), 410, "lease_ended")
        assert told["details"]["end"] == end
        assert told["sandbox_id"] == gone.path.rsplit("/", 1)[1]
    assert http.get(gone.path).json()["end"] == http.delete(gone.path).json()["end"] == end
    assert '"ended"' in http.get(f"{gone.path}/logs").text


def test_a_command_under_which_the_lease_ends_gets_no_exec(http: httpx.Client) -> None:
    """A failure of the sandbox never looks like one of the command."""
    gone = lease(http)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gone.post, "/execs", {"cmd": "sleep 60"})
        eventually(lambda: len(gone.get("/execs").json()["execs"]) == 1, within_s=5, what="it runs")
        http.delete(gone.path)
        problem(waiting.result(10), 410, "lease_ended")


@pytest.mark.requirement("LC-05", "LC-07")
def test_a_hard_end_and_an_idle_end_are_told_apart(http: httpx.Client) -> None:
    """A running command is use, and the hard end stands above it."""
    expired = lease(http, timeout_s=1)
    idle = lease(http, idle_timeout_s=1)
    busy = lease(http, idle_timeout_s=1)
    seen = busy.exec("sleep 2; echo ok")
    assert seen["stdout"] == "ok\n"
    both = (expired, idle)
    eventually(lambda: all(one.get().json()["end"] for one in both), within_s=10, what="both end")
    for one, reason in ((expired, "expired"), (idle, "idle")):
        end = one.get().json()["end"]
        assert (end["reason"], end["code"], end["fault"], end["mask"]) == (
            reason, "lease_ended", "client", True,
        )  # fmt: skip
        told = problem(one.post("/execs", {"cmd": "true"}), 410, "lease_ended")
        assert (told["fault"], told["mask"]) == ("client", True)
    http.delete(busy.path)


def test_an_ended_lease_says_what_it_used(http: httpx.Client, can: dict[str, Any]) -> None:
    used = lease(http)
    used.exec(["python3", "-c", "x = bytearray(50 << 20); sum(range(3_000_000))"])
    usage = http.delete(used.path, params={"wait_s": 10}).json()["usage"]
    if can["limits"]["memory"] == "enforced":
        assert usage["cpu_s"] > 0.02
        assert usage["memory_peak_bytes"] > 50 << 20
    else:  # nothing measures it, and nothing is made up
        assert (usage["cpu_s"], usage["memory_peak_bytes"]) == (None, None)
    assert (usage["execs"], usage["cells"]) == (1, 0)
    assert usage["leased_s"] > 0


def test_reading_a_sandbox_costs_no_call_into_it(http: httpx.Client) -> None:
    """Also when every processor inside is taken, and without moving its idle clock."""
    one = lease(http)
    one.start("for n in 1 2 3 4; do (while :; do :; done) & done; wait")
    before = one.get().json()["idle_expires_at"]
    began = time.monotonic()
    for _ in range(50):
        assert one.get().status_code == 200
    assert (time.monotonic() - began) / 50 < 0.1
    assert before is None or one.get().json()["idle_expires_at"] is not None
    http.delete(one.path)


def test_a_wait_that_nobody_ends_answers_in_time(http: httpx.Client) -> None:
    one = lease(http)
    began = time.monotonic()
    assert one.get(wait_s=5).json()["state"] == "leased"  # there is nothing to wait for
    assert time.monotonic() - began < 2
    http.delete(one.path)


def test_metrics_have_the_names_of_the_contract_and_labels_of_closed_sets(
    http: httpx.Client, sandbox: Speaker
) -> None:
    sandbox.exec("true")
    http.get("/v1/sandboxes/nobody")
    text = http.get("/metrics").text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert families == set(METRICS)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, labels = line.rpartition(" ")[0].partition("{")
        family = name
        for ending in ("_bucket", "_count", "_sum"):
            family = family.removesuffix(ending)
        found = dict(part.split("=", 1) for part in labels.rstrip("}").split(",") if part)
        found.pop("le", None)
        assert set(found) == METRICS[family], line
        for label, value in found.items():
            assert value.strip('"') in CLOSED[label], line


def test_the_version_says_what_there_is(http: httpx.Client, sandbox: Speaker, backend: str) -> None:
    told = http.get("/v1/version").json()
    assert set(told) >= {
        "version", "api", "guest_protocols", "backend", "capabilities", "limits",
    }  # fmt: skip
    assert (told["backend"], 3 in told["guest_protocols"]) == (backend, True)
    assert set(told["limits"].values()) <= {"enforced", "watched", "none"}
    assert sandbox.get().json()["limits"] == told["limits"]


def test_lists_of_templates_and_pools_are_paged_too(http: httpx.Client) -> None:
    for noun, name in (("templates", "name"), ("pools", "template")):
        first = http.get(f"/v1/{noun}?limit=2").json()
        rest = http.get(f"/v1/{noun}", params={"cursor": first["next_cursor"]}).json()
        assert [one[name] for one in first[noun] + rest[noun]] == ["python", "broken", "user"]
        assert rest["next_cursor"] is None


def test_a_secret_is_in_the_environment_and_nowhere_else(http: httpx.Client) -> None:
    one = lease(http, secrets={"TOKEN": "hush-hush"}, env={"PLAIN": "p"})
    assert one.exec("echo $TOKEN $PLAIN")["stdout"] == "hush-hush p\n"
    shown = [one.get(), one.get("/logs"), one.get("/execs"), http.get("/v1/sandboxes")]
    shown += [http.get("/metrics"), http.get("/v1/pools"), http.delete(one.path)]
    assert all("hush" not in response.text for response in shown)


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/v1/version", "/openapi.json"]
)
def test_what_get_answers_head_answers(http: httpx.Client, path: str) -> None:
    told = http.head(path)
    assert (told.status_code, told.content) == (200, b"")
    assert int(told.headers["content-length"]) > 0


def test_the_hard_end_begins_the_scorers_own_time(http: httpx.Client) -> None:
    one = lease(http, timeout_s=1, grading_s=60, idle_timeout_s=1)
    running = one.start("sleep 300")
    eventually(lambda: one.get().json()["phase"] == "grading", within_s=10, what="grading begins")
    assert one.ended(running)["outcome"] == "killed"
    shown = one.get().json()
    assert (shown["state"], shown["end"], shown["idle_expires_at"]) == ("leased", None, None)
    assert shown["expires_at"] - time.time() == pytest.approx(60, abs=5)
    assert one.exec("echo scored")["stdout"] == "scored\n"
    problem(one.post("/grading", {"timeout_s": 5}), 409, "conflict")
    http.delete(one.path)


def test_grading_begins_early_once(http: httpx.Client) -> None:
    one = lease(http)
    running = one.start("sleep 300")
    begun = one.post("/grading", {"timeout_s": 1}).json()
    assert (begun["phase"], begun["state"]) == ("grading", "leased")
    assert one.ended(running)["outcome"] == "killed"
    problem(one.post("/grading", {"timeout_s": 5}), 409, "conflict")
    eventually(lambda: one.get().json()["end"] is not None, within_s=10, what="it ends")
    assert one.get().json()["end"]["reason"] == "expired"


def test_renewing_is_no_use_and_has_a_most(http: httpx.Client) -> None:
    one = lease(http, timeout_s=100, idle_timeout_s=50)
    before = one.get().json()
    renewed = one.post("/renew", {"timeout_s": 200}).json()
    assert renewed["expires_at"] == pytest.approx(time.time() + 200, abs=3)
    assert renewed["idle_expires_at"] == pytest.approx(before["idle_expires_at"], abs=0.5)
    for most in (None, -1):
        told = one.post("/renew", {"timeout_s": most}).json()
        assert told["expires_at"] == pytest.approx(time.time() + 86400, abs=3)
    refused = problem(one.post("/renew", {"timeout_s": 86401}), 422, "bad_request")
    assert refused["details"]["max_timeout_s"] == 86400
    http.delete(one.path)


def test_an_empty_body_stands_for_the_usual(http: httpx.Client, sandbox: Speaker) -> None:
    assert http.post(f"{sandbox.path}/renew").json()["expires_at"] > time.time() + 80_000
    assert http.post(f"{sandbox.path}/shells").json()["state"] == "idle"
    assert http.post(f"{sandbox.path}/tokens").json()["token"]


def test_a_token_in_the_path_stands_for_its_sandbox(http: httpx.Client, sandbox: Speaker) -> None:
    at = sandbox.post("/tokens", {"rights": "read", "ttl_s": 60}).json()["url"]
    assert http.get(at).json()["id"] == sandbox.get().json()["id"]
    assert http.head(at).status_code == http.get(f"{at}/").status_code == 200
    assert http.get(f"{at}/execs?limit=1").json()["execs"] == []
    problem(http.post(f"{at}/execs", json={"cmd": "true"}), 403, "forbidden")
    problem(http.get(f"{at}/../../pools"), 404, "not_found")
    problem(http.get(f"{at}/%2e%2e/%2e%2e/pools"), 404, "not_found")
    use = sandbox.post("/tokens", {"rights": "use"}).json()["url"]
    assert http.post(f"{use}/execs", json={"cmd": "echo hi"}).json()["stdout"] == "hi\n"
    for method, rest in (("DELETE", ""), ("DELETE", "/"), ("POST", "/renew"), ("POST", "/tokens"),
                         ("POST", "/grading")):  # fmt: skip
        refused = http.request(method, use + rest, json={"timeout_s": 1})
        problem(refused, 403, "forbidden")
    short = sandbox.post("/tokens", {"ttl_s": 0.2}).json()["url"]
    eventually(lambda: http.get(short).status_code == 401, within_s=5, what="it is over")
    problem(http.get(short), 401, "unauthenticated")
    problem(http.get("/s/"), 401, "unauthenticated")
    assert sandbox.get().json()["state"] == "leased"
