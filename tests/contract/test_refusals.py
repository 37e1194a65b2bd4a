"""What an outsider may send and never gets: a 500, a traceback, or silence about what he asked."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.contract.speaker import PROBLEM_FIELDS, Speaker, problem
from tests.support.daemon import RunningDaemon


def raw(daemon: RunningDaemon, head: bytes) -> tuple[int, bytes]:
    """The status and body that bytes on a socket are answered with."""
    port = int(daemon.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(head)
        told = b""
        while piece := line.recv(65536):
            told += piece
    return int(told.split(b" ", 2)[1]), told.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        ("/execs", {"cmd": "true"}),
        ("/execs/x/signal", {"signal": "KILL"}),
        ("/shells", {}),
        ("/shells/x/run", {"text": "true"}),
        ("/files/mkdir", {"path": "x"}),
        ("/files/move", {"from": "x", "to": "y"}),
        ("/renew", {}),
        ("/grading", {"timeout_s": 1}),
        ("/tokens", {}),
    ],
)
def test_an_unknown_field_is_refused_by_its_name_everywhere(
    sandbox: Speaker, rest: str, body: dict[str, Any]
) -> None:
    told = problem(sandbox.post(rest, {**body, "colour": "red"}), 422, "bad_request")
    assert "colour" in told["detail"]
    assert told["details"]["problems"][0]["field"] == "colour"


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/execs"),
        ("GET", "/execs"),
        ("GET", "/execs/x"),
        ("GET", "/execs/x/output"),
        ("GET", "/execs/x/events"),
        ("POST", "/execs/x/stdin"),
        ("POST", "/shells/x/run"),
        ("GET", "/files"),
        ("PUT", "/files"),
        ("DELETE", "/files"),
        ("GET", "/files/list"),
        ("PUT", "/files/archive"),
    ],
)
def test_an_unknown_query_parameter_is_refused_by_its_name(
    sandbox: Speaker, method: str, rest: str
) -> None:
    """`DELETE …?recursiv=true` or `?run_id=a&lable=b=c` must not do something else instead."""
    response = sandbox.http.request(method, sandbox.path + rest, params={"colour": ""})
    assert "colour" in problem(response, 422, "bad_request")["detail"]
    assert sandbox.get().json()["state"] == "leased"


def test_a_misspelt_filter_releases_nothing(http: httpx.Client, sandbox: Speaker) -> None:
    for query in ("lable=a=b", "run_id=x&rollout=y", "state=leased", ""):
        problem(http.delete(f"/v1/sandboxes?{query}"), 422, "bad_request")
    assert sandbox.get().json()["state"] == "leased"


@pytest.mark.parametrize("identity", ["", "a/b", "a b", "é", "a\n", "x" * 129, "a\0b", "a%"])
def test_ids_of_callers_have_one_form(http: httpx.Client, sandbox: Speaker, identity: str) -> None:
    for field in ("run_id", "group_id", "rollout_id", "idempotency_key"):
        refused = http.post("/v1/sandboxes", json={"template": "python", field: identity})
        assert field in problem(refused, 422, "bad_request")["detail"]
    refused = sandbox.post("/execs", {"cmd": "true", "exec_id": identity})
    assert "exec_id" in problem(refused, 422, "bad_request")["detail"]
    assert sandbox.get("/execs").json()["execs"] == []


@pytest.mark.requirement("EX-11")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"cmd": ["echo", "a\0"]}, "cmd.1"),
        ({"cmd": "a\0"}, "cmd"),
        ({"cmd": "true", "env": {"A\0": "x"}}, "env"),
        ({"cmd": "true", "env": {"A": "x\0"}}, "env.A"),
        ({"cmd": "true", "cwd": "/\0"}, "cwd"),
        ({"cmd": "true", "user": "a\0"}, "user"),
        ({"cmd": 5}, "cmd"),
        ({"cmd": []}, "cmd"),
        ({"cmd": [1]}, "cmd.0"),
        ({}, "cmd"),
        ({"cmd": "true", "timeout_s": 0}, "timeout_s"),
        ({"cmd": "true", "timeout_s": "soon"}, "timeout_s"),
        ({"cmd": "true", "stdin_b64": "%"}, "stdin_b64"),
        ({"cmd": "true", "stdin": "a", "stdin_b64": "YQ=="}, ""),
        ({"cmd": "true", "output_limit_bytes": 1 << 40}, "output_limit_bytes"),
    ],
)
def test_a_bad_command_is_refused_by_the_fields_name(
    sandbox: Speaker, body: dict[str, Any], field: str
) -> None:
    """EX-11: and nothing is run."""
    told = problem(sandbox.post("/execs", body), 422, "bad_request")
    assert told["details"]["problems"][0]["field"].startswith(field)
    assert told["detail"].startswith(field)
    assert "function-" not in told["detail"]
    assert sandbox.get("/execs").json()["execs"] == []


@pytest.mark.requirement("EX-11")
@pytest.mark.parametrize(
    "way", ["path=a%00b", "path_b64=YQBi", "path=", "path_b64=%25", "user=a%00&path=a"]
)
def test_nul_and_nonsense_in_a_path_are_refused(sandbox: Speaker, way: str) -> None:
    """EX-11, FI: in queries."""
    for rest in ("files", "files/list", "files/stat", "files/archive"):
        problem(sandbox.http.get(f"{sandbox.path}/{rest}?{way}"), 422, "bad_request")
    for method, rest in (("PUT", "files"), ("DELETE", "files"), ("PUT", "files/archive")):
        refused = sandbox.http.request(method, f"{sandbox.path}/{rest}?{way}")
        problem(refused, 422, "bad_request")
    for rest, body in (("mkdir", {"path": "a\0"}), ("move", {"from": "a\0", "to": "b"})):
        problem(sandbox.post(f"/files/{rest}", body), 422, "bad_request")


def test_ids_in_paths_are_never_taken_for_something_else(sandbox: Speaker) -> None:
    """No id is pasted into another request: escapes in it stay part of it."""
    for strange in ("a%2Fb", "a%0d%0aX:1", "a%3Fx", "a%00b", "%ff", "a%20b", "x" * 500, "%2e%2e"):
        for rest in (f"/execs/{strange}", f"/shells/{strange}", f"/execs/{strange}/output"):
            problem(sandbox.get(rest), 404, "not_found")
        problem(sandbox.post(f"/execs/{strange}/signal", {"signal": "KILL"}), 404, "not_found")


@pytest.mark.parametrize(
    "fields",
    [
        {"runtime": "runsc"},
        {"resources": {"gpu": 1}},
    ],
)
def test_what_this_backend_or_version_cannot_do_is_said(
    http: httpx.Client, can: dict[str, Any], fields: dict[str, Any]
) -> None:
    if "resources" in fields and can["gpu"]:
        pytest.skip("a cluster may have GPUs: its scheduler says")
    told = problem(
        http.post("/v1/sandboxes", json={"template": "python", **fields}), 501, "not_supported"
    )
    assert (told["fault"], told["retry_safe"], told["mask"]) == ("client", True, True)


def test_a_lease_whose_files_or_workdir_cannot_be_is_the_callers_fault(
    http: httpx.Client, can: dict[str, Any]
) -> None:
    """The agent has not acted yet: a refusal here must never count against it."""
    for fields in (
        {"workdir": "/proc/nope"},
        {"files": {"/etc/passwd/x": {"text": ""}}},
        {"files": {"n" * 300: {"text": ""}}},
        {"user": "nobody-of-this-name"},
    ):
        response = http.post("/v1/sandboxes", json={"template": "python", **fields})
        refused = 501 if "user" in fields and not can["other_users"] else 422
        assert response.status_code == refused, response.text
        body = response.json()
        assert (body["fault"], body["mask"]) == ("client", True)


def test_an_image_that_cannot_be_had_is_the_tasks_fault(http: httpx.Client) -> None:
    told = problem(
        http.post("/v1/sandboxes", json={"template": "broken"}), 424, "image_unavailable"
    )
    assert (told["fault"], told["mask"]) == ("task", True)
    assert "nope" in told["detail"]


def test_another_method_is_told_which_there_are(http: httpx.Client, sandbox: Speaker) -> None:
    refused = http.put("/v1/sandboxes")
    assert problem(refused, 405, "bad_request")
    assert refused.headers["allow"] == "DELETE, GET, HEAD, POST"
    assert http.patch(f"{sandbox.path}/files").headers["allow"] == "DELETE, GET, HEAD, PUT"


def test_paths_with_a_slash_at_the_end_are_no_redirects(
    http: httpx.Client, sandbox: Speaker
) -> None:
    for path in ("/v1/sandboxes/", f"{sandbox.path}/", f"{sandbox.path}/execs/"):
        problem(http.get(path), 404, "not_found")


@pytest.mark.parametrize(
    "header", ["Host: [", "Host: a]", "Host: localhost\r\nOrigin: http://[", "Host: "]
)
def test_names_that_are_none_are_foreign(daemon: RunningDaemon, header: str) -> None:
    status, body = raw(
        daemon, f"GET /v1/pools HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n".encode()
    )
    assert (status, b'"forbidden"' in body) == (403, True)


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE",
        b"GET /v1/\xff HTTP/1.1\r\nHost: localhost",
        b"GET /v1/pools?" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost",
        b"BREW /v1/pools HTTP/1.1\r\nHost: localhost",
    ],
)
def test_what_is_no_http_is_refused_with_a_problem_too(daemon: RunningDaemon, head: bytes) -> None:
    status, body = raw(daemon, head + b"\r\nConnection: close\r\n\r\n")
    assert status in {400, 422}
    assert set(json.loads(body)) >= PROBLEM_FIELDS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"template": "python", "timeout_s": ' + b"1" * 5000 + b"}",
        b'{"template": "python", "timeout_s": NaN}',
        b'{"template": "python", "grading_s": NaN}',
        b'{"template": "python", "wait_timeout_s": Infinity}',
        b'{"template": "\\ud800"}',
        b'{"template": "python", "\\ud800": 1}',
        b'{"template": "python", "labels": {"\\ud800": "x"}}',
        b'{"template": "python", "env": {"A": "\\udfff"}}',
    ],
)
def test_json_that_is_none_or_nonsense_is_refused(http: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    problem(http.post("/v1/sandboxes", content=body, headers=headers), 422, "bad_request")


def test_bodies_over_the_limit_are_refused_before_they_are_sent(daemon: RunningDaemon) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    status, body = raw(daemon, head + b"Content-Length: 99999999999\r\n\r\n")
    assert (status, b'"too_large"' in body) == (413, True)


def test_request_ids_that_could_break_a_log_are_replaced(http: httpx.Client) -> None:
    for given in ("a b", "x" * 129, ""):
        told = http.get("/v1/pools", headers={"X-Request-ID": given}).headers["x-request-id"]
        assert re.fullmatch(r"req-[a-z0-9]+", told)
    assert http.get("/healthz", headers={"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"


def test_shell_characters_in_fields_run_nowhere(http: httpx.Client, sandbox: Speaker) -> None:
    """SE-10."""
    for evil in (
        "$(touch /tmp/PWN)",
        "`touch /tmp/PWN`",
        ";touch /tmp/PWN",
        "--privileged",
        "-v/:/h",
    ):
        for fields in ({"cwd": evil}, {"user": evil}, {"env": {evil.replace("=", ""): evil}}):
            assert sandbox.post("/execs", {"cmd": ["true"], **fields}).status_code == 200
        for fields in ({"image": evil}, {"user": evil}, {"runtime": evil}, {"template": evil}):
            response = http.post("/v1/sandboxes", json={"template": "python", **fields})
            assert 400 <= response.status_code < 502, response.text
        labelled = http.post("/v1/sandboxes", json={"template": "python", "labels": {evil: evil}})
        assert labelled.json()["labels"] == {evil: evil}
        http.delete(f"/v1/sandboxes/{labelled.json()['id']}")
    assert sandbox.exec("ls /tmp/PWN")["exit_code"] != 0


def test_nothing_of_this_was_an_error_of_ours(daemon: RunningDaemon) -> None:
    log = daemon.log.read_text()
    assert "Traceback" not in log
    assert '"level": "error"' not in log
