"""Who may come in, what is refused, and what no answer ever shows."""

from __future__ import annotations

import re

import httpx
import pytest

from sandboxd.wire.codes import CODES, ErrorCode


def problem(response: httpx.Response, status: int, code: ErrorCode) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = response.json()
    assert body["code"] == code
    assert set(body) >= {
        "type", "title", "status", "detail", "code", "fault", "retry_safe", "mask",
        "retry_after_s", "sandbox_id", "request_id", "details",
    }  # fmt: skip
    assert body["fault"] in {"agent", "task", "infra", "client", "unknown"}
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def test_health_is_open_and_everything_else_asks_for_a_key(url: str) -> None:
    with httpx.Client(base_url=url) as nobody:
        assert nobody.get("/healthz").status_code == 200
        assert nobody.get("/readyz").status_code == 200
        assert "sandboxd_leases_granted_total" in nobody.get("/metrics").text
        for path in ("/v1/version", "/v1/sandboxes", "/openapi.json", "/v1/nowhere"):
            problem(nobody.get(path), 401, ErrorCode.UNAUTHENTICATED)
        wrong = {"Authorization": "Bearer nope"}
        problem(nobody.get("/v1/pools", headers=wrong), 401, ErrorCode.UNAUTHENTICATED)


def test_another_key_s_sandbox_is_not_there(
    alice: httpx.Client, bob: httpx.Client, sandbox: str
) -> None:
    assert alice.get(sandbox).status_code == 200
    for method, path, body in (
        ("GET", sandbox, None),
        ("DELETE", sandbox, None),
        ("POST", f"{sandbox}/renew", {}),
        ("POST", f"{sandbox}/execs", {"cmd": "true"}),
        ("GET", f"{sandbox}/files?path=/x", None),
        ("POST", f"{sandbox}/tokens", {}),
    ):
        problem(bob.request(method, path, json=body), 404, ErrorCode.NOT_FOUND)
    assert bob.get("/v1/sandboxes").json()["sandboxes"] == []
    assert bob.delete("/v1/sandboxes", params={"label": "a=b"}).json()["released"] == []


def test_ids_are_opaque_lower_case_and_unguessable(alice: httpx.Client, sandbox: str) -> None:
    identity = sandbox.rsplit("/", 1)[1]
    assert re.fullmatch(r"[a-z0-9-]+", identity)
    assert len(identity.split("-")[1]) * 5 >= 122


def test_a_request_id_is_taken_and_echoed(alice: httpx.Client) -> None:
    headers = {"X-Request-ID": "mine-1"}
    assert alice.get("/v1/pools", headers=headers).headers["x-request-id"] == "mine-1"
    body = alice.get("/v1/sandboxes/nope", headers=headers).json()
    assert body["request_id"] == "mine-1"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"template": "python", "colour": "red"}, "colour"),
        ({"template": "python", "env": {"A": 1}}, "env.A"),
        ({"template": "python", "env": {"": "x"}}, "env"),
        ({"template": "python", "env": {"A=B": "x"}}, "env"),
        ({"template": "python", "env": {"A": "x\0"}}, "env.A"),
        ({"template": "python", "timeout_s": -5}, "timeout_s"),
        ({"template": "python", "timeout_s": 1e300}, "timeout_s"),
        ({"template": "python", "run_id": "a/b"}, "run_id"),
        ({"template": "python", "labels": {"k" * 64: "v"}}, "labels"),
        ({"template": "python", "labels": {str(i): "v" for i in range(65)}}, "labels"),
        ({"template": "python", "files": {"a": {}}}, "files.a"),
        ({"template": "python", "files": {"a": {"data_b64": "%%"}}}, "files.a"),
        ({"template": "python", "resources": {"memory_mb": -1}}, "resources.memory_mb"),
        ({"template": "python", "resources": {"memory": 1}}, "resources.memory"),
        ({}, ""),
    ],
)
def test_a_bad_lease_is_refused_with_the_field_s_name(
    alice: httpx.Client, body: dict[str, object], field: str
) -> None:
    details = problem(alice.post("/v1/sandboxes", json=body), 422, ErrorCode.BAD_REQUEST)["details"]
    problems = details["problems"]  # type: ignore[index]
    assert any(item["field"].startswith(field) for item in problems)


def test_an_unknown_template_is_named_with_those_there_are(alice: httpx.Client) -> None:
    body = problem(
        alice.post("/v1/sandboxes", json={"template": "nope"}), 422, ErrorCode.BAD_REQUEST
    )
    assert "python" in str(body["detail"])


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (["x"], "no MCP server 'x'"),
        ({"x": {}}, "give a `command`"),
        ({"x": {"port": 80, "restart": "on_exit"}}, "needs the `command`"),
        ({"x": {"command": ["x"], "hidden": {"who": "{label.user}"}}}, "label.user"),
        ({"x": {"scope": "shared"}}, "no MCP server 'x'"),
    ],
)
def test_a_wrong_declaration_of_an_mcp_server_is_refused_with_its_mend(
    alice: httpx.Client, servers: object, words: str
) -> None:
    response = alice.post("/v1/sandboxes", json={"template": "python", "mcp_servers": servers})
    body = problem(response, 422, ErrorCode.BAD_REQUEST)
    assert words in str(body["detail"])
    assert "mcp_servers" in str(body["details"])


def test_json_that_is_none_and_bodies_over_the_limit_are_refused(alice: httpx.Client) -> None:
    broken = alice.post("/v1/sandboxes", content=b"{", headers={"Content-Type": "application/json"})
    problem(broken, 422, ErrorCode.BAD_REQUEST)
    large = b'{"template": "' + b"x" * (17 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    problem(alice.post("/v1/sandboxes", content=large, headers=headers), 413, ErrorCode.TOO_LARGE)

    def pieces() -> object:
        for _ in range(17):
            yield b"x" * (1 << 20)

    chunked = alice.post("/v1/sandboxes", content=pieces(), headers=headers)  # type: ignore[arg-type]
    problem(chunked, 413, ErrorCode.TOO_LARGE)


def test_wrong_methods_and_paths_are_problems_too(alice: httpx.Client) -> None:
    problem(alice.get("/v1/nowhere"), 404, ErrorCode.NOT_FOUND)
    problem(alice.put("/v1/pools"), 405, ErrorCode.BAD_REQUEST)


def test_no_answer_shows_a_secret(alice: httpx.Client) -> None:
    body = {
        "template": "python",
        "secrets": {"TOKEN": "hush-hush"},
        "env": {"PLAIN": "plain-value"},
        "idempotency_key": "secrets-1",
    }
    created = alice.post("/v1/sandboxes", json=body)
    path = f"/v1/sandboxes/{created.json()['id']}"
    seen = [created, alice.get(path), alice.get(f"{path}/logs"), alice.get("/v1/sandboxes")]
    seen.append(alice.post("/v1/sandboxes", json={**body, "secrets": {"TOKEN": 7}}))
    seen.append(alice.post("/v1/sandboxes", json={**body, "secrets": {"TOKEN": "other-hush"}}))
    assert seen[-1].status_code == 409
    for response in seen:
        assert "hush" not in response.text
    alice.delete(path)


def test_a_token_is_good_for_its_sandbox_alone(alice: httpx.Client, url: str, sandbox: str) -> None:
    other = f"/v1/sandboxes/{alice.post('/v1/sandboxes', json={'template': 'python'}).json()['id']}"
    made = alice.post(f"{sandbox}/tokens", json={"rights": "use", "ttl_s": 60}).json()
    reading = alice.post(f"{sandbox}/tokens", json={"rights": "read"}).json()["token"]
    with httpx.Client() as nobody:
        by_path = made["url"]
        assert by_path.startswith(url)
        run = nobody.post(f"{by_path}/execs", json={"cmd": "echo hi"})
        assert run.json()["stdout"] == "hi\n"
        bearer = {"Authorization": f"Bearer {made['token']}"}
        assert nobody.get(url + sandbox, headers=bearer).status_code == 200
        problem(nobody.get(url + other, headers=bearer), 404, ErrorCode.NOT_FOUND)
        problem(nobody.get(url + "/v1/pools", headers=bearer), 404, ErrorCode.NOT_FOUND)
        for method, rest in (("POST", "/renew"), ("DELETE", ""), ("POST", "/tokens")):
            refused = nobody.request(method, by_path + rest, json={})
            problem(refused, 403, ErrorCode.FORBIDDEN)
        read = {"Authorization": f"Bearer {reading}"}
        refused = nobody.post(f"{url}{sandbox}/execs", json={"cmd": "true"}, headers=read)
        problem(refused, 403, ErrorCode.FORBIDDEN)
        true = made["token"]
        forged = true[:-9] + ("b" if true[-9] == "a" else "a") + true[-8:]
        problem(nobody.get(f"{url}/s/{forged}/execs"), 401, ErrorCode.UNAUTHENTICATED)
    alice.delete(other)


def test_every_code_that_can_be_an_answer_has_a_status() -> None:
    inside_only = {ErrorCode.OOM, ErrorCode.SIGNALED, ErrorCode.KILLED, ErrorCode.LOST}
    for code, facts in CODES.items():
        assert (facts.status is None) == (code in inside_only | {ErrorCode.EVICTED})


def test_no_key_may_end_everybody_s_leases(alice: httpx.Client) -> None:
    problem(alice.post("/v1/sweep", json={"all": True}), 403, ErrorCode.FORBIDDEN)
    assert alice.post("/v1/sweep", json={"dry_run": True}).json()["boxes"] == []
