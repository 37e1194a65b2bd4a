"""The OpenAPI document: ids that stay, shapes that are true."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.contract.speaker import Speaker

OPERATIONS = {
    "adjust_pool", "beat_run", "begin_grading", "close_shell", "delete_file", "end_run",
    "follow_events", "follow_exec", "get_exec", "get_health", "get_metrics", "get_readiness",
    "get_run", "get_sandbox", "get_sandbox_logs", "get_shell", "get_version", "lease_sandbox",
    "list_execs", "list_files", "list_pools", "list_runs", "list_sandboxes", "list_shells",
    "list_templates", "make_directory", "mint_token", "move_file", "open_shell", "pack_files",
    "read_exec_output", "read_file", "release_sandbox", "release_sandboxes", "renew_sandbox",
    "run_exec", "run_in_shell", "signal_exec", "stat_file", "sweep", "unpack_files",
    "write_exec_stdin", "write_file",
}  # fmt: skip

Document = dict[str, Any]


@pytest.fixture
def document(http: httpx.Client) -> Document:
    told: Document = http.get("/openapi.json").json()
    return told


def check(document: Document, name: str, body: Any) -> None:
    """The body is of the named shape, and has no member that the shape does not name."""
    shape = document["components"]["schemas"][name]
    jsonschema.validate(body, {**shape, "components": document["components"]})
    assert set(body) <= set(shape["properties"]), name


def test_operation_ids_stay_what_they_are(document: Document) -> None:
    """Generated clients are named by them: one may be added, none goes or changes."""
    found = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(found) == len(set(found))
    assert set(found) >= OPERATIONS


def test_every_failure_is_told_as_a_problem(document: Document) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation["responses"]["default"]["content"]
            assert set(content) == {"application/problem+json"}
            assert "422" not in operation["responses"]


def test_answers_are_of_the_shapes_that_the_document_names(
    http: httpx.Client, sandbox: Speaker, document: Document
) -> None:
    check(document, "Version", http.get("/v1/version").json())
    check(document, "Problem", http.get("/v1/nowhere").json())
    check(document, "Sandboxes", http.get("/v1/sandboxes").json())
    check(document, "Sandbox", sandbox.get().json())
    check(document, "Run", http.put("/v1/runs/shape/heartbeat", json={"ttl_s": 9}).json())
    check(document, "Runs", http.get("/v1/runs").json())
    check(document, "Released", http.delete("/v1/runs/shape").json())
    check(document, "Token", sandbox.post("/tokens", {}).json())
    for cmd in ("echo hi", ["no-such-cmd"], "kill -9 $$"):
        check(document, "Exec", sandbox.exec(cmd))
    check(document, "Exec", sandbox.post("/execs", {"cmd": "true"}, encoding="base64").json())
    check(document, "Execs", sandbox.get("/execs").json())
    exec_id = sandbox.exec("seq 100000; echo err >&2", output_limit_bytes=1024)["exec_id"]
    for event in sandbox.events(exec_id):
        check(document, "ExecEvent", event)
    check(document, "Signalled", sandbox.post(f"/execs/{exec_id}/signal", {"signal": "INT"}).json())
    shell = sandbox.post("/shells", {}).json()
    check(document, "Shell", shell)
    check(document, "Shells", sandbox.get("/shells").json())
    ended = sandbox.post(f"/shells/{shell['shell_id']}/run", {"text": "exit 1"}).json()
    check(document, "Exec", ended)
    sandbox.exec("ln -s x link; touch \"$(printf 'x\\377')\"")
    check(document, "Files", sandbox.get("/files/list", path=".").json())
    for entry in sandbox.get("/files/list", path=".").json()["files"]:
        check(document, "File", entry)
    check(document, "Sandbox", http.delete(sandbox.path, params={"wait_s": 10}).json())
    check(document, "Problem", sandbox.get("/execs").json())
