"""Commands over HTTP on real sandboxes: starts, statuses, input, shells."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, held, problem
from tests.support.daemon import RunningDaemon

EXEC_FIELDS = {
    "exec_id", "state", "outcome", "exit_code", "signal", "status", "fault", "mask", "oom_kills",
    "stdout", "stderr", "stdout_bytes", "stderr_bytes", "stdout_truncated", "stderr_truncated",
    "output_dropped", "duration_s", "started_at", "error",
}  # fmt: skip


def test_an_exec_has_every_field_of_the_contract(sandbox: Speaker) -> None:
    before = time.time()
    seen = sandbox.exec("echo out; echo err >&2; sleep 0.05; exit 3")
    assert set(seen) >= EXEC_FIELDS
    assert (seen["outcome"], seen["exit_code"], seen["status"]) == ("exited", 3, 3)
    assert (seen["stdout"], seen["stderr"]) == ("out\n", "err\n")
    assert (seen["fault"], seen["mask"], seen["error"]) == (None, False, None)
    assert before - 1 < seen["started_at"] < time.time() + 1
    assert 0.05 <= seen["duration_s"] < 5
    running = sandbox.post("/execs", {"cmd": "sleep 50", "detach": True})
    assert running.status_code == 202
    body = running.json()
    assert (body["state"], body["outcome"], body["exit_code"], body["status"]) == (
        "running", None, None, None,
    )  # fmt: skip
    in_bytes = sandbox.post("/execs", {"cmd": "printf '\\377'"}, encoding="base64").json()
    assert (in_bytes["stdout_b64"], "stdout" in in_bytes) == ("/w==", False)


def test_detach_answers_202_whatever_came_of_it(sandbox: Speaker) -> None:
    """A client that branches on 202 must not meet another number for a command that was quick."""
    exec_id = sandbox.start("true", exec_id="quick")
    assert sandbox.ended(exec_id)["exit_code"] == 0
    assert sandbox.start("true", exec_id="quick") == exec_id
    assert sandbox.ended(sandbox.start(["no-such-cmd-xyz"]))["outcome"] == "start_failed"


@pytest.mark.requirement("EX-01")
def test_500_statuses_are_exact_50_at_a_time(daemon: RunningDaemon, sandbox: Speaker) -> None:
    """EX-01, scaled: 200 calls, half of them streamed."""

    def one(number: int) -> int:
        if number % 2:
            return int(sandbox.exec("exit 42")["exit_code"])
        with sandbox.stream("exit 42") as events:
            return int(list(events)[-1]["exec"]["exit_code"])

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(200))) == {42}


@pytest.mark.requirement("EX-03")
@pytest.mark.requirement("EX-20")
def test_a_child_in_the_background_holds_up_no_call_and_lives_on(sandbox: Speaker) -> None:
    """EX-03, EX-20."""
    for _ in range(20):
        began = time.monotonic()
        seen = sandbox.exec("sleep 301 & echo done")
        assert time.monotonic() - began < 5
        assert (seen["outcome"], seen["exit_code"], seen["stdout"]) == ("exited", 0, "done\n")
    assert len(sandbox.processes("sleep 301")) == 20


@pytest.mark.requirement("EX-05")
@pytest.mark.parametrize(
    ("cmd", "fields"),
    [("true", {}), (["cat"], {}), (["cat"], {"stdin": ""}), ("cat", {"stdin_b64": ""})],
)
def test_no_input_is_end_of_file_at_once(
    sandbox: Speaker, cmd: str | list[str], fields: dict[str, str]
) -> None:
    """EX-05."""
    began = time.monotonic()
    seen = sandbox.exec(cmd, **fields)
    assert time.monotonic() - began < 2
    assert (seen["exit_code"], seen["stdout_bytes"]) == (0, 0)


@pytest.mark.requirement("EX-06")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [1, 65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 50 << 20])
def test_streamed_input_of_any_size_arrives_whole(sandbox: Speaker, size: int) -> None:
    """EX-06."""
    data = Random(size).randbytes(size)  # noqa: S311

    def pieces() -> Iterator[bytes]:
        for start in range(0, size, 1 << 17):
            yield data[start : start + (1 << 17)]

    exec_id = sandbox.start(["sha256sum"], stdin_open=True)
    taken = sandbox.http.post(
        f"{sandbox.path}/execs/{exec_id}/stdin", content=pieces(), params={"offset": 0, "eof": True}
    )
    assert (taken.status_code, taken.json()) == (200, {"offset": size})
    seen = sandbox.ended(exec_id)
    assert (seen["exit_code"], seen["stdout"][:64]) == (0, hashlib.sha256(data).hexdigest())


@pytest.mark.requirement("EX-06")
def test_input_over_the_limit_of_json_is_refused_before_anything_runs(sandbox: Speaker) -> None:
    """EX-06."""
    refused = sandbox.post("/execs", {"cmd": "touch /tmp/ran; cat", "stdin": "x" * (17 << 20)})
    problem(refused, 413, "too_large")
    assert sandbox.exec("test -e /tmp/ran")["exit_code"] == 1


def test_input_is_counted_by_offsets(sandbox: Speaker) -> None:
    exec_id = sandbox.start(["cat"], stdin_open=True)
    at = f"{sandbox.path}/execs/{exec_id}/stdin"
    assert sandbox.http.post(at, content=b"abc", params={"offset": 0}).json() == {"offset": 3}
    again = sandbox.http.post(at, content=b"abcdef", params={"offset": 0})
    assert again.json() == {"offset": 6}  # what was taken already is skipped
    gap = problem(sandbox.http.post(at, content=b"x", params={"offset": 9}), 409, "conflict")
    assert gap["details"]["offset"] == 6
    assert sandbox.http.post(at, content=b"", params={"eof": True}).json() == {"offset": 6}
    assert sandbox.ended(exec_id)["stdout"] == "abcdef"
    problem(sandbox.http.post(at, content=b"y"), 410, "conflict")


@pytest.mark.requirement("EX-08")
@pytest.mark.requirement("EX-10")
@pytest.mark.parametrize(
    ("cmd", "outcome", "exit_code", "status", "reason"),
    [
        (["no-such-cmd-xyz"], "start_failed", None, 127, "not_found"),
        (["/etc/hostname"], "start_failed", None, 126, "not_executable"),
        (["echo", "x" * 200_000], "start_failed", None, 126, "too_long"),
        ("no-such-cmd-xyz", "exited", 127, 127, None),
        ("exit 127", "exited", 127, 127, None),
    ],
)
def test_what_cannot_be_started_is_told_apart_from_exit_127(
    sandbox: Speaker,
    cmd: str | list[str],
    outcome: str,
    exit_code: int | None,
    status: int,
    reason: str | None,
) -> None:
    """EX-08, EX-10."""
    seen = sandbox.exec(cmd)
    assert (seen["outcome"], seen["exit_code"], seen["status"], seen["stdout"]) == (
        outcome, exit_code, status, "",
    )  # fmt: skip
    if reason is not None:
        assert (seen["error"]["code"], seen["error"]["reason"]) == ("start_failed", reason)
        assert cmd[0] in seen["error"]["detail"]
        assert (seen["fault"], seen["mask"]) == ("agent", False)
    assert sandbox.exec("echo usable")["stdout"] == "usable\n"


@pytest.mark.requirement("EX-09")
@pytest.mark.parametrize(
    ("fields", "reason", "named"),
    [
        ({"cwd": "/nope"}, "bad_cwd", "/nope"),
        ({"cwd": "/etc/hostname"}, "bad_cwd", "/etc/hostname"),
        ({"cwd": "/tmp/closed", "user": "1000"}, "bad_cwd", "/tmp/closed"),
        ({"user": "no-such-user"}, "bad_user", "no-such-user"),
    ],
)
def test_a_directory_or_user_that_the_call_named_is_the_callers_fault(
    sandbox: Speaker, can: dict[str, Any], fields: dict[str, str], reason: str, named: str
) -> None:
    """EX-09."""
    if fields.get("user") == "1000" and not can["other_users"]:
        pytest.skip("capability other_users is false: boxes of a daemon that is not root have one")
    sandbox.exec("mkdir -m 700 /tmp/closed; chmod 777 /tmp")
    seen = sandbox.exec(["touch", "/tmp/marker"], **fields)
    assert (seen["outcome"], seen["error"]["reason"]) == ("start_failed", reason)
    assert named in seen["error"]["detail"]
    assert (seen["fault"], seen["mask"], seen["exit_code"]) == ("client", True, None)
    assert sandbox.exec("test -e /tmp/marker")["exit_code"] == 1


@pytest.mark.requirement("EX-10")
@pytest.mark.parametrize("size", [100 << 10, 131_071])
def test_shell_text_runs_up_to_the_length_of_an_argument(sandbox: Speaker, size: int) -> None:
    """EX-10."""
    text = ":" + " " * (size - len(":; echo END")) + "; echo END"
    assert len(text) == size
    assert sandbox.exec(text)["stdout"] == "END\n"


@pytest.mark.requirement("EX-10")
@pytest.mark.parametrize("size", [131_072, 200 << 10, 2 << 20])
def test_longer_shell_text_is_refused_with_the_limit(sandbox: Speaker, size: int) -> None:
    """EX-10."""
    body = problem(sandbox.post("/execs", {"cmd": "#" * size}), 413, "too_large")
    assert body["details"]["limit_bytes"] == 131_071


@pytest.mark.requirement("EX-12")
def test_environment_arrives_byte_for_byte(sandbox: Speaker) -> None:
    """EX-12."""
    env = {
        "A": "l1\nl2",
        "B": "x=y=z",
        "C": "",
        "D": "$(id) `id` $HOME 'q' \"q\"",
        "E": "é€\t",
        "1X": "odd",
        "a b": "odd too",
    }
    seen = sandbox.exec(["env", "-0"], env=env)
    told = dict(entry.split("=", 1) for entry in seen["stdout"].split("\0") if entry)
    assert {name: told[name] for name in env} == env


@pytest.mark.requirement("EX-12")
@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_names_that_no_environment_can_hold_are_refused(
    sandbox: Speaker, env: dict[str, str]
) -> None:
    """EX-12."""
    assert (
        "env"
        in problem(sandbox.post("/execs", {"cmd": "true", "env": env}), 422, "bad_request")[
            "detail"
        ]
    )


@pytest.mark.requirement("EX-18")
def test_a_prompt_meets_end_of_file_and_a_loop_on_it_its_deadline(sandbox: Speaker) -> None:
    """EX-18."""
    seen = sandbox.exec(["python3", "-c", "input('x')"])
    assert seen["exit_code"] == 1
    assert "EOFError" in seen["stderr"]
    seen = sandbox.exec("while ! read a; do echo again; done", timeout_s=1)
    assert (seen["outcome"], seen["exit_code"], seen["status"]) == ("timeout", None, 124)
    assert len(seen["stdout"]) < (1 << 20) + 200


@pytest.mark.requirement("EX-19")
@pytest.mark.parametrize("code", [0, 1, 2, 125, 126, 128, 255, 256])
def test_an_exit_code_is_the_processs_own(sandbox: Speaker, code: int) -> None:
    """EX-19."""
    seen = sandbox.exec(["bash", "-c", f"exit {code}"])
    assert (seen["outcome"], seen["exit_code"], seen["signal"]) == ("exited", code % 256, None)


@pytest.mark.requirement("EX-19")
@pytest.mark.parametrize(
    ("number", "name"), [(9, "KILL"), (15, "TERM"), (11, "SEGV"), (13, "PIPE")]
)
def test_death_by_a_signal_has_its_name_and_no_exit_code(
    sandbox: Speaker, number: int, name: str
) -> None:
    """EX-19."""
    seen = sandbox.exec(f"kill -{number} $$")
    assert (seen["outcome"], seen["exit_code"], seen["signal"]) == ("signaled", None, name)
    assert (seen["status"], seen["fault"], seen["mask"]) == (128 + number, "agent", False)


@pytest.mark.requirement("EX-20")
def test_a_server_in_the_background_serves_the_next_command(sandbox: Speaker) -> None:
    """EX-20."""
    sandbox.exec("nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
    fetch = (
        "import time,urllib.request as r\n"
        "for _ in range(100):\n"
        "  try: print(r.urlopen('http://127.0.0.1:8123').status); break\n"
        "  except OSError: time.sleep(0.05)\n"
    )
    assert sandbox.exec(["python3", "-c", fetch])["stdout"] == "200\n"
    assert sandbox.exec(["python3", "-c", fetch])["stdout"] == "200\n"


def test_the_same_id_attaches_and_another_command_under_it_is_a_conflict(sandbox: Speaker) -> None:
    """TO-09: nothing is run twice."""
    order = {"cmd": "echo x >> /tmp/n; cat /tmp/n", "exec_id": "a.b:c@d-e_f"}
    first = sandbox.post("/execs", order).json()
    assert sandbox.post("/execs", order).json() == first
    # Whoever attaches again may have less time left, or want to wait in another way.
    assert sandbox.post("/execs", {**order, "timeout_s": 5, "detach": True}).json() == first
    for other in ({"cmd": "true"}, {"env": {"A": "1"}}, {"cwd": "/tmp"}, {"stdin": "x"}):
        problem(sandbox.post("/execs", {**order, **other}), 409, "conflict")
    assert sandbox.exec("cat /tmp/n")["stdout"] == "x\n"


def test_records_are_listed_newest_first_in_pages(sandbox: Speaker) -> None:
    ids = [sandbox.exec("true", exec_id=f"e{number}")["exec_id"] for number in range(120)]
    first = sandbox.get("/execs").json()
    assert [e["exec_id"] for e in first["execs"]] == ids[::-1][:100]
    assert all("stdout" not in e for e in first["execs"])
    rest = sandbox.get("/execs", cursor=first["next_cursor"]).json()
    assert ([e["exec_id"] for e in rest["execs"]], rest["next_cursor"]) == (ids[::-1][100:], None)
    assert len(sandbox.get("/execs", limit=7).json()["execs"]) == 7
    problem(sandbox.get("/execs", limit=1001), 422, "bad_request")
    problem(sandbox.get("/execs", cursor="§"), 422, "bad_request")


@pytest.mark.requirement("EX-13")
@pytest.mark.timeout(40)
def test_a_shell_survives_texts_that_do_not_end(sandbox: Speaker) -> None:
    """EX-13."""
    shell = sandbox.post("/shells", {}).json()["shell_id"]

    def run(text: str) -> dict[str, object]:
        began = time.monotonic()
        body: dict[str, object] = sandbox.post(f"/shells/{shell}/run", {"text": text}).json()
        assert time.monotonic() - began < 5, text
        return body

    assert run("cat > /tmp/f <<'X'\n1\n2\n3\nX\n")["exit_code"] == 0
    assert sandbox.exec("wc -l < /tmp/f")["stdout"] == "3\n"
    assert run("echo 'open")["exit_code"] != 0
    unterminated = run("cat <<'X'\nnever ends")
    assert unterminated["outcome"] == "exited"
    assert run("echo ok")["stdout"] == "ok\n"


@pytest.mark.requirement("EX-14")
@pytest.mark.parametrize(("text", "code"), [("set -e; false", 1), ("exit 3", 3)])
def test_a_shell_that_ends_says_so_and_the_next_run_is_told(
    sandbox: Speaker, text: str, code: int
) -> None:
    """EX-14."""
    shell = sandbox.post("/shells", {}).json()["shell_id"]
    ended = sandbox.post(f"/shells/{shell}/run", {"text": text}).json()
    assert (ended["outcome"], ended["exit_code"], ended.get("shell_ended")) == (
        "exited",
        code,
        True,
    )
    began = time.monotonic()
    body = problem(sandbox.post(f"/shells/{shell}/run", {"text": "echo a"}), 409, "conflict")
    assert time.monotonic() - began < 2
    assert body["details"]["shell_ended"] is True
    assert sandbox.get(f"/shells/{shell}").json()["state"] == "ended"
    fresh = sandbox.post("/shells", {}).json()["shell_id"]
    assert sandbox.post(f"/shells/{fresh}/run", {"text": "echo a"}).json()["stdout"] == "a\n"


def test_a_shells_deadline_ends_its_job_and_not_the_shell(sandbox: Speaker) -> None:
    shell = sandbox.post("/shells", {"env": {"V": "kept"}, "cwd": "/tmp"}).json()["shell_id"]
    seen = sandbox.post(f"/shells/{shell}/run", {"text": "sleep 300", "timeout_s": 0.5}).json()
    assert (seen["outcome"], seen["status"]) == ("timeout", 124)
    assert "shell_ended" not in seen
    after = sandbox.post(f"/shells/{shell}/run", {"text": "echo $V $PWD"}).json()
    assert after["stdout"] == "kept /tmp\n"


def test_the_shell_text_of_a_command_reads_no_start_up_files(sandbox: Speaker) -> None:
    """Decision 7: `/bin/sh -c`, no login shell."""
    sandbox.exec("echo 'echo started' | tee ~/.profile ~/.bashrc ~/.shrc > /tmp/rc")
    assert sandbox.exec("echo $0", env={"ENV": "/tmp/rc"})["stdout"] == "/bin/sh\n"


def test_two_hundred_commands_leave_descriptors_and_threads_as_they_were(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    """PL-10, scaled."""

    sandbox.exec("true")
    before = held(daemon.pid)
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=sandbox.http.base_url) as http:
        other = Speaker(http, sandbox.path)
        list(pool.map(lambda _: other.exec("true"), range(200)))
    eventually(
        lambda: all(n <= b + 10 for n, b in zip(held(daemon.pid), before, strict=True)),
        within_s=15,
        what=f"descriptors and threads are back: {before}",
    )
