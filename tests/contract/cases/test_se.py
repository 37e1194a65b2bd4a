"""Security over the API: whose is what, what cannot be guessed, and what is never a command.

What is tried from inside of a sandbox stands in `tests/conformance/isolation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.contract.cases.houses import House
from tests.contract.speaker import Speaker, problem

_OpenHouse = Callable[..., AbstractContextManager[House]]

_KEYS = """
[server]
api_keys = [
  {name = "alice", key = "alice-key-1"},
  {name = "bob", key = "bob-key-1"},
  {name = "few", key = "few-key-1", quota = {creates_per_minute = 2}},
]
"""

_BODIES: dict[str, Any] = {
    "run_exec": {"cmd": "true"},
    "write_exec_stdin": b"x",
    "signal_exec": {"signal": "KILL"},
    "resize_exec": {"rows": 24, "cols": 80},
    "renew_sandbox": {"timeout_s": 60},
    "begin_grading": {"timeout_s": 60},
    "mint_token": {},
    "write_file": b"x",
    "make_directory": {"path": "/tmp/x"},
    "move_file": {"from": "/tmp/x", "to": "/tmp/y"},
    "unpack_files": b"",
    "open_shell": {},
    "run_in_shell": {"text": "true"},
    "execute_cell": {"code": "1"},
    "answer_input": {"text": "x"},
    "complete_code": {"code": "x"},
    "inspect_code": {"code": "x"},
    "set_network": {"network": "none"},
    "add_forwards": {"forwards": {"8000": "http://example.org"}},
}
_QUERIES = {
    "read_file": {"path": "/etc/hostname"},
    "write_file": {"path": "/tmp/x"},
    "delete_file": {"path": "/tmp/x"},
    "stat_file": {"path": "/tmp"},
    "list_files": {"path": "/tmp"},
    "pack_files": {"path": "/tmp"},
    "unpack_files": {"path": "/tmp"},
    "write_exec_stdin": {"offset": "0"},
}
_ID = re.compile(r"[a-z]+-[a-z2-7]{25,}")  # five bits a letter


class _Callers:
    """One daemon, and a client for each key; `nobody` has none."""

    def __init__(self, house: House, stack: ExitStack) -> None:
        self.url = house.url
        self.alice, self.bob, self.few, self.nobody, self.stranger = (
            stack.enter_context(httpx.Client(base_url=house.url, headers=headers, timeout=60))
            for headers in (
                {"Authorization": "Bearer alice-key-1"},
                {"Authorization": "Bearer bob-key-1"},
                {"Authorization": "Bearer few-key-1"},
                {},
                {"Authorization": "Bearer alice-key-2"},
            )
        )


@pytest.fixture
def callers(open_house: _OpenHouse) -> Iterator[_Callers]:
    with open_house(pool="ready = 0, max = 20", more=_KEYS) as house, ExitStack() as stack:
        yield _Callers(house, stack)


def _lease(client: httpx.Client, **fields: Any) -> str:
    answer = client.post("/v1/sandboxes", json={"template": "python", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _operations(client: httpx.Client) -> Iterator[tuple[str, str, str]]:
    """Every one that there is: its name, method and path."""
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield operation["operationId"], method.upper(), path


def _call(
    client: httpx.Client, name: str, method: str, where: str, ids: Mapping[str, str]
) -> httpx.Response:
    for place, value in ids.items():
        where = where.replace("{" + place + "}", value)
    body = _BODIES.get(name)
    words = {"content": body} if isinstance(body, bytes) else {"json": body}
    return client.request(method, where, params=_QUERIES.get(name), **words)


@pytest.mark.requirement("SE-07")
def test_se_07_another_keys_objects_are_not_there_on_any_route(callers: _Callers) -> None:
    alice, bob = callers.alice, callers.bob
    alice.put("/v1/runs/alices-run/heartbeat", json={"ttl_s": 600})
    group = alice.post("/v1/groups", json={"template": "python", "count": 2}).json()
    sandbox = _lease(alice, run_id="alices-run", labels={"whose": "alices"})
    mine = Speaker(alice, f"/v1/sandboxes/{sandbox}")
    running = mine.start("cat", stdin_open=True)
    shell = alice.post(f"{mine.path}/shells", json={}).json()["shell_id"]
    kernel = alice.post(f"{mine.path}/kernels", json={}).json()["kernel_id"]
    ids = {
        "sandbox_id": sandbox, "exec_id": running, "shell_id": shell, "port": "8000",
        "kernel_id": kernel, "cell_id": "x", "name": "python3",
        "path": "x", "run_id": "alices-run", "group_id": group["group_id"],
    }  # fmt: skip
    wrong = []
    for name, method, path in _operations(alice):
        if not {"{sandbox_id}", "{group_id}"} & set(re.findall(r"{\w+}", path)):
            continue
        if name in {"attach_exec", "jupyter_channels"}:
            continue  # WebSockets: below
        answer = _call(bob, name, method, path, ids)
        if answer.status_code != 404 or answer.json()["code"] != "not_found":
            wrong.append((name, answer.status_code, answer.text[:200]))
    assert wrong == []
    assert bob.get("/v1/runs/alices-run").status_code == 404
    assert bob.get("/v1/runs").json()["runs"] == []
    assert bob.get("/v1/sandboxes").json()["sandboxes"] == []
    for query in ({"run_id": "alices-run"}, {"label": "whose=alices"}):
        assert bob.get("/v1/sandboxes", params=query).json()["sandboxes"] == []
        assert bob.delete("/v1/sandboxes", params=query).json()["released"] == []
    sockets = ("execs/{exec_id}/attach", "ports/8000/", "jupyter/api/kernels/{kernel_id}/channels")
    for place in (f"{mine.path}/{socket.format(**ids)}" for socket in sockets):
        with pytest.raises(InvalidStatus) as caught:
            connect(
                callers.url.replace("http", "ws", 1) + place,
                additional_headers={"Authorization": "Bearer bob-key-1"},
            )
        assert caught.value.response.status_code == 404
    # All of it is as it was.
    assert mine.get(f"/execs/{running}").json()["state"] == "running"
    assert alice.get(f"/v1/groups/{group['group_id']}").status_code == 200
    assert alice.get("/v1/runs/alices-run").json()["state"] == "active"


@pytest.mark.requirement("SE-07")
def test_se_07_events_of_another_key_are_not_told(callers: _Callers) -> None:
    with callers.bob.stream("GET", "/v1/events") as events:
        alices, bobs = _lease(callers.alice), _lease(callers.bob)
        lines, heard = events.iter_lines(), ""
        while bobs not in heard:
            heard += next(lines)
    assert alices not in heard
    with callers.alice.stream("GET", "/v1/events", headers={"Last-Event-ID": "x-0"}) as events:
        lines, heard = events.iter_lines(), ""  # of no daemon: all that is kept comes again
        while alices not in heard:
            heard += next(lines)
    assert bobs not in heard


@pytest.mark.requirement("SE-07")
def test_se_07_without_a_key_nothing_but_health_is_answered(callers: _Callers) -> None:
    sandbox = _lease(callers.alice)
    ids = {
        "sandbox_id": sandbox, "exec_id": "x", "shell_id": "x", "port": "8000", "path": "x",
        "run_id": "x", "group_id": "x", "template": "python",
    }  # fmt: skip
    openly = {"get_health", "get_readiness", "get_metrics"}
    for name, method, path in _operations(callers.alice):
        for client in (callers.nobody, callers.stranger):
            status = _call(client, name, method, path, ids).status_code
            assert status == (200 if name in openly else 401), (name, status)
    assert callers.nobody.get("/openapi.json").status_code == 401
    with pytest.raises(InvalidStatus) as caught:
        connect(callers.url.replace("http", "ws", 1) + f"/v1/sandboxes/{sandbox}/execs/x/attach")
    assert caught.value.response.status_code == 401


@pytest.mark.requirement("SE-07")
def test_se_07_ids_have_122_random_bits_and_no_order(callers: _Callers) -> None:
    sandboxes = [_lease(callers.alice) for _ in range(4)]
    path = f"/v1/sandboxes/{sandboxes[0]}"
    execs = [
        callers.alice.post(f"{path}/execs", json={"cmd": "true"}).json()["exec_id"]
        for _ in range(4)
    ]
    shells = [callers.alice.post(f"{path}/shells", json={}).json()["shell_id"] for _ in range(2)]
    for made in (sandboxes, execs, shells):
        assert all(_ID.fullmatch(each) for each in made), made
        letters = [each.split("-")[1] for each in made]
        assert len({each[:6] for each in letters}) == len(letters)
        assert len({each[-6:] for each in letters}) == len(letters)


@pytest.mark.requirement("SE-07")
def test_se_07_a_rate_that_is_used_up_is_429_for_that_key_alone(callers: _Callers) -> None:
    for _ in range(2):
        _lease(callers.few)
    refused = callers.few.post("/v1/sandboxes", json={"template": "python"})
    body = problem(refused, 429, "quota_exceeded")
    assert body["details"]["quota"] == "creates_per_minute"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    _lease(callers.bob)
    assert callers.few.get("/v1/quota").json()["creates_left"] == 0


_PWN = "sandboxd-pwned-by-a-test"
_VALUES = [
    f"$(touch /tmp/{_PWN})",
    f";touch /tmp/{_PWN}",
    f"`touch /tmp/{_PWN}`",
    f"x\ntouch /tmp/{_PWN}\n",
    f"x' ; touch /tmp/{_PWN} ; '",
    "--privileged",
    "-v/:/h",
    "--cap-add=ALL",
]


@pytest.mark.requirement("SE-10")
@pytest.mark.parametrize("value", _VALUES)
def test_se_10_no_parameter_is_ever_a_command_or_a_flag(
    http: httpx.Client, sandbox: Speaker, value: str
) -> None:
    for fields in (
        {"cwd": value},
        {"user": value},
        {"env": {value: "x"}},
        {"env": {"A": value}},
        {"exec_id": value},
    ):
        said = sandbox.post("/execs", {"cmd": ["printenv", "A"], **fields})
        assert said.status_code in {200, 404, 409, 422}, (fields, said.text)
        if fields == {"env": {"A": value}}:
            assert said.json()["stdout"] == f"{value}\n"
    for call in (
        sandbox.get("/files", path=value),
        sandbox.post("/files/mkdir", {"path": f"dir-{value}"}),
        sandbox.post("/files/move", {"from": value, "to": f"{value}.moved"}),
        http.put(f"{sandbox.path}/files", params={"path": f"f-{value}"}, content=b"x"),
        http.delete(f"{sandbox.path}/files", params={"path": value}),
        sandbox.post("/shells", {"cwd": value, "user": value}),
        sandbox.get(f"/execs/{quote(value, safe='')}"),
    ):
        assert call.status_code < 500, call.text
    named = sandbox.get("/files/list", path="/workspace").json()["files"]
    assert {each["name"] for each in named if each["name"].startswith("f-")} <= {
        f"f-{value}".split("/")[0]
    }
    for field in ("image", "workdir", "user", "run_id", "group_id", "template", "runtime"):
        answer = http.post("/v1/sandboxes", json={"template": "python", field: value})
        assert answer.status_code in {201, 403, 422, 424, 501}, answer.text
        if answer.status_code == 201:
            _free_of_flags(Speaker(http, f"/v1/sandboxes/{answer.json()['id']}"))
    answer = http.post("/v1/sandboxes", json={"template": "python", "labels": {value: value}})
    assert answer.status_code in {201, 422}
    if answer.status_code == 201:
        _free_of_flags(Speaker(http, f"/v1/sandboxes/{answer.json()['id']}"))
    assert not Path(f"/tmp/{_PWN}").exists()
    # Below its workdir there are files whose names are these words.
    elsewhere = f"find / -xdev -path /workspace -prune -o -name {_PWN} -print 2>/dev/null"
    assert sandbox.exec(elsewhere)["stdout"] == ""


def _free_of_flags(box: Speaker) -> None:
    """It has no more than any other, and goes."""
    rights = box.exec("grep CapBnd /proc/self/status; ls -d /h")["stdout"].split()
    assert int(rights[1], 16) & (1 << 21) == 0  # SYS_ADMIN
    assert len(rights) == 2
    box.http.delete(box.path)
