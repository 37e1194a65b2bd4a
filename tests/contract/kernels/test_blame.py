"""What an agent does to its own kernel is the agent's doing, and never leaves its rollout out."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, problem
from tests.support.cells import Kernel, add_liar, add_spec, open_kernel, python_inside

pytestmark = pytest.mark.timeout(120)

# Stops its own process as soon as it has answered.
_STOPS_ITSELF = """
import os, subprocess
watch = "until grep -q idle-now /tmp/said; do sleep 0.01; done; kill -STOP $0; echo > /tmp/stopped"
subprocess.Popen(["sh", "-c", watch, str(os.getpid())])
"""
# Takes the names of the next kernel's sockets before it can; they stand in its connection file.
_SQUATS = """
import glob, json, os, socket
known = set(glob.glob("/tmp/kernel-*.json"))
open("/tmp/squatting", "w").close()
while True:
    for path in set(glob.glob("/tmp/kernel-*.json")) - known:
        try:
            prefix = json.load(open(path))["ip"].lstrip("@")
        except ValueError:
            continue
        held = [socket.socket(socket.AF_UNIX) for _ in range(5)]
        for number, each in enumerate(held, 1):
            each.bind(f"\\0{prefix}-{number}")
            LISTEN
        known.add(path)
        import time; time.sleep(60)
"""


def judged(answer: httpx.Response, *, code: str) -> None:
    body = answer.json()
    assert (body["code"], body["fault"], body["mask"]) == (code, "agent", False), body


def test_a_kernelspec_that_ran_before_was_broken_from_inside(roomy: Speaker) -> None:
    add_liar(roomy, "frail")
    kernel = open_kernel(roomy, "frail")
    roomy.exec("echo 'import sys; sys.exit(3)' > /opt/frail.py")
    cell = kernel.run(json.dumps([]), timeout_s=0.3)
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("timeout", "agent", False)
    judged(kernel.call("execute", code="1"), code="start_failed")
    judged(kernel.call("restart"), code="start_failed")
    judged(roomy.post("/kernels", {"spec": "frail"}), code="start_failed")
    roomy.exec("rm -r /usr/local/share/jupyter/kernels/frail")
    judged(roomy.post("/kernels", {"spec": "frail"}), code="start_failed")


def test_what_the_caller_says_of_its_start_is_not_the_agents_doing(roomy: Speaker) -> None:
    python = python_inside(roomy)
    add_spec(roomy, "moody", ["sh", "-c", f'test -z "$LD_MOOD" && exec {python} /opt/liar.py "$0"'],
             {})  # fmt: skip
    kernel = open_kernel(roomy, "moody")
    answer = roomy.post("/kernels", {"spec": "moody", "env": {"LD_MOOD": "bad"}})
    body = problem(answer, 502, "start_failed")
    assert (body["fault"], body["mask"]) == ("task", True)
    roomy.http.delete(roomy.path + kernel.path)


@pytest.mark.parametrize("listen", ["each.listen()", "pass"], ids=["listens", "only holds"])
def test_who_takes_a_kernels_sockets_has_kept_it_from_starting(roomy: Speaker, listen: str) -> None:
    add_liar(roomy, "squatted")
    code = _SQUATS.replace("LISTEN", listen)
    squatter = roomy.start([python_inside(roomy), "-c", code], timeout_s=60)
    try:
        roomy.exec("until test -e /tmp/squatting; do sleep 0.01; done; rm /tmp/squatting")
        answer = roomy.post("/kernels", {"spec": "squatted"})
        judged(answer, code="start_failed")
    finally:
        roomy.post(f"/execs/{squatter}/signal", {"signal": "KILL"})


def test_a_kernel_that_takes_nothing_any_more_has_died_by_its_own_doing(roomy: Speaker) -> None:
    kernel = open_kernel(roomy)
    kernel.ok(_STOPS_ITSELF)
    roomy.exec("echo idle-now > /tmp/said; until test -e /tmp/stopped; do sleep 0.01; done")
    cell: dict[str, Any] = kernel.run("1" + " " * (4 << 20), timeout_s=60)
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("died", "agent", False)
    judged(kernel.call("execute", code="1"), code="kernel_died")
    roomy.http.delete(roomy.path + kernel.path)


def test_a_kernel_that_closes_its_control_has_died_at_its_deadline(roomy: Speaker) -> None:
    add_liar(roomy, "deaf", mode="message")
    kernel = open_kernel(roomy, "deaf")
    cell = kernel.run(json.dumps([{"close": "control"}]), timeout_s=0.3)
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("died", "agent", False)
    judged(kernel.call("execute", code="1"), code="kernel_died")
    roomy.http.delete(roomy.path + kernel.path)


def test_a_question_that_a_kernel_does_not_answer_is_its_own_doing(liar: Kernel) -> None:
    running = liar.start(json.dumps([{"sleep": 1}, {"exit": 3}]))
    liar.running(running)
    judged(liar.call("complete", code="a"), code="kernel_died")


@pytest.mark.parametrize(
    "text",
    ['{"argv": ["x"], "display_name": "\\ud800"}', '{"argv": ["x"], "metadata": {"a": NaN}}',
     '{"argv": ["x"], "metadata": ' + "[" * 5000, '{"argv": ["x\\u0000"]}', "\xff"],
)  # fmt: skip
def test_a_kernelspec_that_is_none_is_not_there_and_keeps_no_other_from_being_listed(
    roomy: Speaker, text: str
) -> None:
    path = "/usr/local/share/jupyter/kernels/odd/kernel.json"
    roomy.http.put(f"{roomy.path}/files", params={"path": path}, content=text.encode("latin-1"))
    assert "odd" not in roomy.get("/jupyter/api/kernelspecs").json()["kernelspecs"]
    assert problem(roomy.post("/kernels", {"spec": "odd"}), 502, "start_failed")["fault"] == "task"


def test_more_kernelspecs_than_anybody_has_are_not_all_looked_at(roomy: Speaker) -> None:
    place = "/usr/local/share/jupyter/kernels"
    roomy.exec(f"mkdir -p {place}; cd {place}; seq -f many-%g 1000 | xargs mkdir")
    try:
        assert "python3" in roomy.get("/jupyter/api/kernelspecs").json()["kernelspecs"]
    finally:
        roomy.exec(f"rm -rf {place}/many-*")
