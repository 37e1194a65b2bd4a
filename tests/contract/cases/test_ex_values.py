"""Commands: what goes in. Input, directories, arguments and variables, byte for byte or refused."""

from __future__ import annotations

import hashlib
import json
import os
import time
from base64 import b64encode
from random import Random
from typing import Any

import pytest

from sandboxd_client import Sandboxd, TooLarge
from tests.contract.cases.forms import (
    Form,
    by_program,
    call,
    in_every_form,
    in_shell,
    new_shell,
)
from tests.contract.speaker import Speaker, problem


@pytest.mark.requirement("EX-05")
@in_every_form
def test_ex_05_no_input_is_end_of_file_at_once(sandbox: Speaker, form: Form) -> None:
    for cmd, fields in (
        (["true"], {}),
        (["cat"], {}),
        (["cat"], {"stdin": ""}),
        (["cat"], {"stdin_b64": ""}),
    ):
        began = time.monotonic()
        seen = form(sandbox, cmd, **fields)
        assert time.monotonic() - began < 2
        assert (seen.outcome, seen.exit_code, seen.stdout) == ("exited", 0, b"")


@pytest.mark.requirement("EX-05")
def test_ex_05_nor_do_a_shells_commands_or_the_program_wait_for_any(sandbox: Speaker) -> None:
    shell = new_shell(sandbox)
    for text in ("true", "cat", "read x || true"):
        began = time.monotonic()
        seen = in_shell(sandbox, text, shell=shell)
        assert time.monotonic() - began < 2
        assert (seen.exit_code, seen.stdout) == (0, b"")
    assert by_program(sandbox, ["cat"]) == (0, b"", b"")


SIZES = [1, 64 << 10, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 50 << 20]


@pytest.mark.requirement("EX-06")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", SIZES)
def test_ex_06_input_of_any_size_arrives_whole_through_the_sdk(sandbox: Speaker, size: int) -> None:
    data = Random(size).randbytes(size)  # noqa: S311 - the same in every run, no secret
    with Sandboxd(str(sandbox.http.base_url).rstrip("/")) as client:
        there = client.sandbox(sandbox.path.rsplit("/", 1)[1])
        seen = there.exec(["sha256sum"], stdin=data)
        assert (seen.outcome, seen.exit_code) == ("exited", 0)
        assert seen.stdout.split()[0] == hashlib.sha256(data).hexdigest()
        process = there.start(["sha256sum"], stdin_open=True)
        with process.attach() as terminal:
            terminal.send(data)
            terminal.close_input()
        assert process.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.requirement("EX-06")
@pytest.mark.timeout(60)
@in_every_form
def test_ex_06_input_in_the_request_arrives_whole(sandbox: Speaker, form: Form) -> None:
    for size in SIZES[:-1]:
        data = Random(size).randbytes(size)  # noqa: S311
        seen = form(sandbox, ["sha256sum"], stdin_b64=b64encode(data).decode())
        digest = hashlib.sha256(data).hexdigest().encode()
        assert (seen.exit_code, seen.stdout.split()[0]) == (0, digest)


@pytest.mark.requirement("EX-06")
@pytest.mark.timeout(60)
def test_ex_06_a_pipe_into_the_program_arrives_whole(sandbox: Speaker) -> None:
    data = os.urandom((1 << 20) + 1)
    code, out, _ = by_program(sandbox, ["sha256sum"], stdin=data)
    assert (code, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())


@pytest.mark.requirement("EX-06")
def test_ex_06_pieces_sent_again_and_again_arrive_once(sandbox: Speaker) -> None:
    data = Random(6).randbytes(300_000)  # noqa: S311
    chance = Random(7)  # noqa: S311
    exec_id = sandbox.start(["sha256sum"], stdin_open=True)
    at, taken = f"{sandbox.path}/execs/{exec_id}/stdin", 0
    while taken < len(data):
        start = max(0, taken - chance.randrange(20_000))
        end = min(len(data), start + chance.randrange(1, 60_000))
        answer = sandbox.http.post(at, content=data[start:end], params={"offset": start})
        assert (answer.status_code, answer.json()["offset"]) == (200, max(taken, end))
        taken = max(taken, end)
        gap = sandbox.http.post(at, content=b"x", params={"offset": taken + 1})
        assert problem(gap, 409, "conflict")["details"]["offset"] == taken
    assert sandbox.http.post(at, params={"offset": taken, "eof": True}).status_code == 200
    digest = hashlib.sha256(data).hexdigest()
    assert sandbox.ended(exec_id)["stdout"].split()[0] == digest


@pytest.mark.requirement("EX-09")
@in_every_form
def test_ex_09_a_bad_directory_is_named_and_nothing_runs(
    sandbox: Speaker, can: dict[str, Any], form: Form
) -> None:
    call(sandbox, "mkdir -m 700 /tmp/closed; chmod 777 /tmp; touch /tmp/file")
    bad: list[tuple[str, dict[str, str]]] = [("/nope", {}), ("/tmp/file", {})]
    if can["other_users"]:
        bad.append(("/tmp/closed", {"user": "1000"}))
    for cwd, fields in bad:
        seen = form(sandbox, ["touch", "/tmp/marker"], cwd=cwd, **fields)
        assert (seen.outcome, seen.exit_code, seen.reason) == ("start_failed", None, "bad_cwd")
        assert cwd in seen.detail
        assert (seen.stdout, seen.stderr) == (b"", b"")
    assert call(sandbox, "test ! -e /tmp/marker && echo usable").stdout == b"usable\n"


@pytest.mark.requirement("EX-09")
def test_ex_09_a_shell_in_a_bad_directory_is_refused_by_its_name(sandbox: Speaker) -> None:
    for cwd in ("/nope", "/etc/hostname"):
        refused = sandbox.post("/shells", {"cwd": cwd})
        assert 400 <= refused.status_code < 500, refused.text
        assert cwd in refused.json()["detail"]
        assert refused.json()["fault"] == "client"


@pytest.mark.requirement("EX-09")
def test_ex_09_who_may_not_enter_the_workdir_still_runs_elsewhere(
    sandbox: Speaker, can: dict[str, Any]
) -> None:
    if not can["other_users"]:
        pytest.skip("capability other_users is false: boxes of a daemon that is not root have one")
    workdir = call(sandbox, "pwd").stdout.decode().strip()
    call(sandbox, "chmod 700 . && chmod 777 /tmp")
    barred = call(sandbox, ["pwd"], user="1000")
    assert (barred.outcome, barred.reason) == ("start_failed", "bad_cwd")
    assert workdir in barred.detail
    assert call(sandbox, ["pwd"], user="1000", cwd="/tmp").stdout == b"/tmp\n"
    shell = new_shell(sandbox, user="1000", cwd="/tmp")
    assert in_shell(sandbox, "pwd", shell=shell).stdout == b"/tmp\n"


@pytest.mark.requirement("EX-10")
@in_every_form
def test_ex_10_shell_text_runs_whole_or_is_refused_with_the_bound(
    sandbox: Speaker, form: Form
) -> None:
    for size in (100 << 10, 131_071, 131_072, 200 << 10, 2 << 20):
        text = ":" + " " * (size - len(":; echo END")) + "; echo END"
        assert len(text) == size
        if size <= 131_071:
            seen = form(sandbox, text)
            assert (seen.exit_code, seen.stdout) == (0, b"END\n")
        elif form.__name__.startswith("sdk"):
            with pytest.raises(TooLarge) as caught:
                form(sandbox, text)
            assert caught.value.details["limit_bytes"] == 131_071
        else:
            body = problem(sandbox.post("/execs", {"cmd": text}), 413, "too_large")
            assert body["details"]["limit_bytes"] == 131_071
    seen = form(sandbox, ["echo", "x" * 200_000])
    assert (seen.outcome, seen.reason, seen.stdout) == ("start_failed", "too_long", b"")
    assert call(sandbox, "echo usable").stdout == b"usable\n"


@pytest.mark.requirement("EX-10")
def test_ex_10_shells_take_long_texts_or_refuse_them_with_the_bound(sandbox: Speaker) -> None:
    shell = new_shell(sandbox)
    for size in (100 << 10, 131_071, 131_072, 200 << 10, 2 << 20):
        text = ":" + " " * (size - len(":; echo END")) + "; echo END"
        answer = sandbox.post(f"/shells/{shell}/run", {"text": text})
        if answer.status_code != 200:
            assert problem(answer, 413, "too_large")["details"]["limit_bytes"] < size
        else:
            assert (answer.json()["exit_code"], answer.json()["stdout"]) == (0, "END\n")
    assert in_shell(sandbox, "echo on", shell=shell).stdout == b"on\n"


@pytest.mark.requirement("EX-11")
def test_ex_11_a_zero_byte_is_refused_everywhere_and_nothing_happens(sandbox: Speaker) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/execs", {"cmd": ["touch", "/tmp/ran\0"]}),
        ("/execs", {"cmd": "touch /tmp/ran\0"}),
        ("/execs", {"cmd": "touch /tmp/ran", "env": {"A\0": "x"}}),
        ("/execs", {"cmd": "touch /tmp/ran", "env": {"A": "x\0"}}),
        ("/execs", {"cmd": "touch /tmp/ran", "cwd": "/tmp\0"}),
        ("/execs", {"cmd": "touch /tmp/ran", "user": "root\0"}),
        ("/shells", {"cwd": "/tmp\0"}),
        ("/shells", {"env": {"A": "\0"}}),
        ("/files/mkdir", {"path": "/tmp/ran\0"}),
        ("/files/move", {"from": "/etc/hostname", "to": "/tmp/ran\0"}),
        ("/files/move", {"from": "/etc/hostname\0", "to": "/tmp/ran"}),
    ]
    for rest, body in bodies:
        assert "\\u0000" in json.dumps(body)
        problem(sandbox.post(rest, body), 422, "bad_request")
    shell = new_shell(sandbox)
    problem(sandbox.post(f"/shells/{shell}/run", {"text": "echo\0"}), 422, "bad_request")
    for method, rest in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/list"),
                         ("GET", "/stat"), ("GET", "/archive"), ("PUT", "/archive")):  # fmt: skip
        for query in ("path=/tmp/ran%00", "path=/tmp/ran&user=root%00"):
            answer = sandbox.http.request(method, f"{sandbox.path}/files{rest}?{query}")
            problem(answer, 422, "bad_request")
    assert call(sandbox, "ls /tmp/ran*").exit_code != 0
    assert [e["exec_id"] for e in sandbox.get("/execs").json()["execs"]][1:] == []


VALUES = {
    "A": "l1\nl2",
    "B": "x=y=z",
    "C": "",
    "D": "$(id) `id` $HOME 'q' \"q\"",
    "E": "é€\t",
    "F": "\r\n\x1b[31m\x7f",
}


@pytest.mark.requirement("EX-12")
@in_every_form
def test_ex_12_variables_arrive_byte_for_byte(sandbox: Speaker, form: Form) -> None:
    for name, value in VALUES.items():
        seen = form(sandbox, ["sh", "-c", f"printenv {name} | od -An -v -tx1"], env=VALUES)
        assert bytes.fromhex(seen.stdout.decode()) == value.encode() + b"\n"


@pytest.mark.requirement("EX-12")
def test_ex_12_so_they_do_in_shells_and_from_the_lease(sandbox: Speaker) -> None:
    shell = new_shell(sandbox, env=VALUES)
    made = sandbox.http.post("/v1/sandboxes", json={"template": "python", "env": VALUES}).json()
    leased = Speaker(sandbox.http, f"/v1/sandboxes/{made['id']}")
    for name, value in VALUES.items():
        text = f"printenv {name} | od -An -v -tx1"
        for seen in (in_shell(sandbox, text, shell=shell), call(leased, text)):
            assert bytes.fromhex(seen.stdout.decode()) == value.encode() + b"\n"
    sandbox.http.delete(leased.path)


@pytest.mark.requirement("EX-12")
@pytest.mark.parametrize("where", ["exec", "shell", "lease"])
def test_ex_12_names_that_cannot_be_are_refused_and_odd_ones_work(
    sandbox: Speaker, where: str
) -> None:
    def send(env: dict[str, str]) -> Any:
        if where == "exec":
            return sandbox.post("/execs", {"cmd": "true", "env": env})
        if where == "shell":
            return sandbox.post("/shells", {"env": env})
        answer = sandbox.http.post("/v1/sandboxes", json={"template": "python", "env": env})
        if answer.status_code == 201:
            sandbox.http.delete(f"/v1/sandboxes/{answer.json()['id']}")
        return answer

    for name in ("", "A=B", "A\0"):
        assert "env" in problem(send({name: "x"}), 422, "bad_request")["detail"]
    for name in ("1X", "a b"):
        assert send({name: "x"}).status_code in {200, 201}
    seen = call(sandbox, ["env", "-0"], env={"1X": "odd", "a b": "odd too"})
    assert {b"1X=odd", b"a b=odd too"} <= set(seen.stdout.split(b"\0"))
