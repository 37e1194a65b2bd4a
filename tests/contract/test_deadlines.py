"""Deadlines and signals: whole trees die, what was said before is kept, and nothing runs twice."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, problem

# A tree of every kind: a child, a grandchild, a double fork, and one in a session of its own.
TREE = "sleep 1001 & (sleep 1002 & wait) & (setsid sleep 1003 &) ; (sleep 1004 &) & wait"


@pytest.mark.requirement("TO-01")
def test_a_deadline_kills_what_burns_the_processor(sandbox: Speaker) -> None:
    began = time.monotonic()
    seen = sandbox.exec(["python3", "-c", "while True: pass"], timeout_s=2)
    assert time.monotonic() - began < 2 + 5
    assert (seen["outcome"], seen["exit_code"], seen["status"]) == ("timeout", None, 124)
    assert (seen["fault"], seen["mask"], seen["error"]["code"]) == ("agent", False, "timeout")
    assert sandbox.processes("while True") == []


@pytest.mark.requirement("TO-02")
def test_the_whole_tree_is_dead_when_the_timeout_is_answered(sandbox: Speaker) -> None:
    assert sandbox.exec(["bash", "-c", TREE], timeout_s=2)["outcome"] == "timeout"
    assert sandbox.processes("sleep 100") == []


@pytest.mark.requirement("TO-02")
def test_the_whole_tree_is_dead_after_a_kill(sandbox: Speaker) -> None:
    exec_id = sandbox.start(["bash", "-c", TREE])
    eventually(
        lambda: len([p for p in sandbox.processes("sleep 100") if p.startswith("sleep")]) == 4,
        within_s=5,
        what="the tree stands",
    )
    told = sandbox.post(f"/execs/{exec_id}/signal", {"signal": "KILL"})
    assert (told.status_code, told.json()["delivered"]) == (200, True)
    seen = sandbox.ended(exec_id, within_s=5)
    assert (seen["outcome"], seen["signal"], seen["status"]) == ("killed", "KILL", 137)
    assert (seen["fault"], seen["mask"]) == ("client", False)
    assert sandbox.processes("sleep 100") == []


@pytest.mark.requirement("TO-04")
def test_output_before_the_deadline_is_kept(sandbox: Speaker) -> None:
    seen = sandbox.exec("echo begin; echo err >&2; sleep 100", timeout_s=2)
    assert (seen["outcome"], seen["stdout"], seen["stderr"]) == ("timeout", "begin\n", "err\n")


@pytest.mark.requirement("TO-05")
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_command_that_says_nothing_for_330_seconds_is_not_cut(sandbox: Speaker) -> None:
    """Longer than any idle limit on the way."""
    with httpx.Client(base_url=sandbox.http.base_url, timeout=600) as patient:
        silent = Speaker(patient, sandbox.path)
        seen = silent.exec("sleep 330; echo ok", timeout_s=600)
    assert (seen["outcome"], seen["stdout"]) == ("exited", "ok\n")


@pytest.mark.requirement("TO-10")
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("way", ["exec", "stream", "shell"])
def test_no_hidden_limit_ends_a_command_of_75_seconds(sandbox: Speaker, way: str) -> None:
    text = "sleep 75; echo ok"
    with httpx.Client(base_url=sandbox.http.base_url, timeout=150) as patient:
        speaker = Speaker(patient, sandbox.path)
        if way == "exec":
            seen = speaker.exec(text, timeout_s=120)
        elif way == "stream":
            with speaker.stream(text, timeout_s=120) as stream:
                seen = list(stream)[-1]["exec"] | {"stdout": "ok\n"}
        else:
            shell = speaker.post("/shells", {}).json()["shell_id"]
            run = f"/shells/{shell}/run"
            seen = speaker.post(run, {"text": text, "timeout_s": 120}).json()
    assert (seen["outcome"], seen["exit_code"], seen["stdout"]) == ("exited", 0, "ok\n")


@pytest.mark.requirement("TO-09")
def test_a_timed_out_or_abandoned_command_is_run_once(sandbox: Speaker) -> None:
    assert sandbox.exec("echo x >> /tmp/n; sleep 60", timeout_s=0.5)["outcome"] == "timeout"
    assert sandbox.exec("cat /tmp/n")["stdout"] == "x\n"
    with (
        httpx.Client(base_url=sandbox.http.base_url, timeout=0.5) as hasty,
        pytest.raises(httpx.ReadTimeout),
    ):
        Speaker(hasty, sandbox.path).exec("echo x >> /tmp/m; sleep 60", exec_id="cut")
    assert sandbox.get("/execs/cut").json()["state"] == "running"
    assert sandbox.exec("cat /tmp/m")["stdout"] == "x\n"


@pytest.mark.requirement("TO-11")
def test_a_signal_says_what_it_hit(http: httpx.Client, sandbox: Speaker) -> None:
    running = sandbox.start("sleep 70")
    over = sandbox.exec("true")["exec_id"]
    other = http.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
    foreign = Speaker(http, f"/v1/sandboxes/{other}").start("sleep 71")
    kill = {"signal": "KILL"}
    for wrong in ("never-existed", foreign, "1", "2", "sleep"):
        problem(sandbox.post(f"/execs/{wrong}/signal", kill), 404, "not_found")
    late = sandbox.post(f"/execs/{over}/signal", kill)
    assert (late.status_code, late.json()) == (200, {"delivered": False, "state": "ended"})
    assert sandbox.get(f"/execs/{over}").json()["outcome"] == "exited"
    assert sandbox.get(f"/execs/{running}").json()["state"] == "running"
    assert sandbox.post(f"/execs/{running}/signal", kill).json()["delivered"] is True
    assert sandbox.ended(running)["outcome"] == "killed"
    problem(sandbox.post(f"/execs/{running}/signal", {"signal": "NOPE"}), 422, "bad_request")
    assert http.get(f"/v1/sandboxes/{other}/execs/{foreign}").json()["state"] == "running"
    http.delete(f"/v1/sandboxes/{other}")


def test_a_caught_signal_ends_a_command_by_its_own_exit(sandbox: Speaker) -> None:
    with sandbox.stream(
        "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    ) as s:
        assert next(s)["type"] == "started"
        assert next(s)["data"] == "ready\n"
        exec_id = sandbox.get("/execs").json()["execs"][0]["exec_id"]
        sandbox.post(f"/execs/{exec_id}/signal", {"signal": "SIGTERM"})
        last = list(s)[-1]["exec"]
    assert (last["outcome"], last["exit_code"]) == ("exited", 5)


@pytest.mark.requirement("TO-13")
@pytest.mark.timeout(90)
def test_under_load_nothing_is_booked_as_a_timeout(sandbox: Speaker) -> None:
    """100 commands while those before them use up the sandbox's own processors."""
    burn = sandbox.start(
        "for n in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait", timeout_s=60
    )

    def one(_: int) -> str:
        return str(sandbox.exec("true", timeout_s=60)["outcome"])

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(one, range(100))) == {"exited"}
    sandbox.post(f"/execs/{burn}/signal", {"signal": "KILL"})


def test_waiting_is_bounded_by_wait_s_and_ends_nothing(sandbox: Speaker) -> None:
    began = time.monotonic()
    running = sandbox.post("/execs", {"cmd": "sleep 60", "exec_id": "w"}, wait_s=0.3)
    assert (running.status_code, running.json()["state"]) == (202, "running")
    again = sandbox.get("/execs/w", wait_s=0.3)
    assert (again.status_code, again.json()["state"]) == (200, "running")
    assert time.monotonic() - began < 5
