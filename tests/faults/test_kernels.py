"""The daemon killed while kernels work: their cells end as if it had not been, and none runs twice.

The judge is outside of it all: each cell writes its own id to a file in its sandbox.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, problem
from tests.support.cells import Kernel, add_liar, open_kernel
from tests.support.service import Service, service

pytestmark = pytest.mark.timeout(180)

_CONFIG = """
[templates.python]
image = {image}
resources = {{memory_mb = 512, pids = 256}}
pool = {{ready = 1, max = 8}}
"""
_MARK = "open('/tmp/ran', 'a').write({cell_id!r} + '\\n')"
_WAIT = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)"


class Stage:
    """A daemon that is killed and started again, and one kernel of it."""

    def __init__(self, daemon: Service) -> None:
        self.daemon = daemon
        self.http = httpx.Client(timeout=60)
        body = self.http.post(f"{daemon.url}/v1/sandboxes", json={"template": "python"}).json()
        self.sandbox_id: str = body["id"]
        self.kernel_id = open_kernel(self.sandbox).kernel_id

    @property
    def sandbox(self) -> Speaker:
        """As the present daemon has it."""
        return Speaker(self.http, f"{self.daemon.url}/v1/sandboxes/{self.sandbox_id}")

    @property
    def kernel(self) -> Kernel:
        """As the present daemon has it."""
        return Kernel(self.sandbox, self.kernel_id)

    def die(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """kill -9 of the daemon, and a new one."""
        self.daemon.kill()
        meanwhile()
        self.daemon.start()

    def send(self, cell_id: str, code: str, **fields: Any) -> None:
        """Hand in a cell that leaves its mark; again is as good."""
        self.kernel.start(marked(cell_id, code), cell_id=cell_id, **fields)

    def go(self) -> None:
        """Let the cells that wait for it end."""
        assert self.sandbox.exec("touch /tmp/go")["exit_code"] == 0

    def ran(self) -> list[str]:
        """Which cells have left their mark, in order."""
        return str(self.sandbox.exec("cat /tmp/ran 2>/dev/null")["stdout"]).split()


def marked(cell_id: str, code: str) -> str:
    return _MARK.format(cell_id=cell_id) + "\n" + code


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    image, prefix = "host", ""
    if request.param == "docker":
        found = request.getfixturevalue("engine_host")
        image, prefix = found.image, f"[backend.docker]\nhost = {json.dumps(found.host)}\n"
    config = prefix + _CONFIG.format(image=json.dumps(image))
    with service(tmp_path, backend=request.param, config=config) as daemon:
        made = Stage(daemon)
        yield made
        made.http.close()


def test_a_cell_that_runs_goes_on_and_is_found_again(stage: Stage) -> None:
    stage.kernel.ok("kept = 41")
    stage.send("running", f"print('before', flush=True)\n{_WAIT}\nprint('after'); kept + 1")
    stage.kernel.running("running")
    stage.die()
    stage.send("running", f"print('before', flush=True)\n{_WAIT}\nprint('after'); kept + 1")
    assert stage.kernel.cell("running")["state"] == "running"
    assert stage.kernel.shown()["state"] == "busy"
    stage.go()
    cell = stage.kernel.ended("running")
    assert (cell["outcome"], cell["text"], cell["execution_count"]) == (
        "ok",
        "before\nafter\n42",
        2,
    )
    assert stage.ran() == ["running"]
    assert stage.kernel.ok("kept") == "41"


def test_a_cell_that_ended_while_nobody_listened_has_its_end(stage: Stage) -> None:
    stage.send("running", f"{_WAIT}\nprint('done')\n1 / 0", timeout_s=100)
    stage.kernel.running("running")
    done = "until grep -q running /tmp/ran; do sleep 0.02; done; sleep 0.5"
    # What lets it end runs inside, and is there before the daemon dies.
    stage.sandbox.start(f"{done}; touch /tmp/go")
    stage.die()
    cell = stage.kernel.ended("running")
    assert (cell["outcome"], cell["stdout"]) == ("error", "done\n")
    assert cell["error"]["ename"] == "ZeroDivisionError"
    assert stage.ran() == ["running"]


def test_a_cell_that_had_ended_is_the_same_and_does_not_run_again(stage: Stage) -> None:
    code = "import sys; print('o'); print('e', file=sys.stderr); display(1); 2"
    stage.send("ended", code)
    before = stage.kernel.ended("ended")
    events = stage.kernel.events("ended")
    stage.die()
    stage.send("ended", code)
    after = stage.kernel.ended("ended")
    assert {**after, "duration_s": 0} == {**before, "duration_s": 0}
    assert abs(after["duration_s"] - before["duration_s"]) < 0.5
    assert [e["type"] for e in stage.kernel.events("ended")] == [e["type"] for e in events]
    assert stage.ran() == ["ended"]
    problem(stage.kernel.call("execute", code="other", cell_id="ended"), 409, "conflict")


def test_cells_that_waited_were_never_given_and_run_once_when_they_come_again(stage: Stage) -> None:
    stage.send("first", _WAIT)
    stage.kernel.running("first")
    for number in range(5):
        stage.send(f"waits-{number}", "1")
    stage.die()
    for number in range(5):
        stage.send(f"waits-{number}", "1")
    stage.go()
    for number in range(5):
        assert stage.kernel.ended(f"waits-{number}")["outcome"] == "ok"
    assert stage.ran() == ["first", *(f"waits-{number}" for number in range(5))]


def test_a_cells_time_runs_on_while_the_daemon_is_away(stage: Stage) -> None:
    stage.send("slow", "import time; time.sleep(100)", timeout_s=3)
    stage.kernel.running("slow")
    stage.die()
    cell = stage.kernel.ended("slow")
    assert (cell["outcome"], cell["kernel_restarted"]) == ("timeout", False)
    assert 2.5 < cell["duration_s"] < 15
    assert stage.kernel.ok("1") == "1"


def test_a_cell_that_its_time_ended_by_force_is_told_so_again(stage: Stage) -> None:
    deaf = "while True:\n  try: print('deaf', flush=True)\n  except BaseException: pass"
    stage.send("deaf", deaf, timeout_s=1)
    told = stage.kernel.ended("deaf", within_s=30)
    assert (told["outcome"], told["kernel_restarted"]) == ("timeout", True)
    stage.die()  # while the new process starts, as a rule
    again = stage.kernel.cell("deaf", wait_s=30)
    assert (again["outcome"], again["kernel_restarted"]) == ("timeout", True)
    assert stage.kernel.ok("1") == "1"
    assert stage.ran() == ["deaf"]


def test_a_kernel_that_died_meanwhile_is_found_dead_with_its_cell(stage: Stage) -> None:
    stage.send("dying", "import os, time; time.sleep(1); os._exit(3)")
    stage.kernel.running("dying")
    stage.die(lambda: time.sleep(1.5))
    cell = stage.kernel.ended("dying")
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("died", "agent", False)
    problem(stage.kernel.call("execute", code="1"), 409, "kernel_died")
    assert stage.kernel.call("restart").status_code == 200
    assert stage.kernel.ok("1") == "1"
    assert stage.ran() == ["dying"]


def test_cells_of_before_a_restart_of_the_kernel_are_remembered_too(stage: Stage) -> None:
    stage.send("old", "kept = 1; print('old')")
    stage.kernel.ended("old")
    assert stage.kernel.call("restart").status_code == 200
    stage.send("new", "kept = 2; print('new')")
    stage.kernel.ended("new")
    stage.die()
    for cell_id in ("old", "new"):
        stage.send(cell_id, f"kept = {1 if cell_id == 'old' else 2}; print({cell_id!r})")
        assert stage.kernel.ended(cell_id)["stdout"] == f"{cell_id}\n"
    assert stage.ran() == ["old", "new"]
    assert stage.kernel.ok("kept") == "2"


def test_input_that_a_cell_waits_for_can_still_be_given(stage: Stage) -> None:
    stage.send("asks", "got = input('who? '); print('hello', got)", allow_stdin=True)
    eventually(lambda: asks(stage, "asks"), within_s=10, what="it asks")
    stage.die()
    eventually(lambda: asks(stage, "asks"), within_s=10, what="it asks again")
    assert stage.kernel.call("input", text="world").status_code == 200
    assert stage.kernel.ended("asks")["stdout"] == "hello world\n"
    assert stage.ran() == ["asks"]


def asks(stage: Stage, cell_id: str) -> bool:
    url = f"{stage.sandbox.path}{stage.kernel.path}/cells/{cell_id}/events"
    with stage.http.stream("GET", url) as response:
        for line in response.iter_lines():
            if json.loads(line)["type"] == "input_request":
                return True
            if json.loads(line)["type"] in {"keepalive", "ended"}:
                return False
    return False


def test_what_a_thread_says_after_the_daemon_died_is_still_its_cells(stage: Stage) -> None:
    code = f"import threading\ndef late():\n  {_WAIT.replace(chr(10), chr(10) + '  ')}\n"
    stage.send("threads", code + "  print('late')\nthreading.Thread(target=late).start()")
    assert stage.kernel.ended("threads")["outcome"] == "ok"
    stage.die()
    stage.go()
    eventually(
        lambda: bool(stage.kernel.cell("threads")["late_outputs"]), within_s=10, what="it is late"
    )
    cell = stage.kernel.cell("threads")
    assert (cell["late_outputs"][0]["text"], cell["stdout"]) == ("late\n", "")


def test_a_kernel_that_was_shut_down_stays_gone(stage: Stage) -> None:
    kernel = stage.kernel
    assert stage.http.delete(stage.sandbox.path + kernel.path).status_code == 204
    stage.die()
    assert stage.sandbox.get("/kernels").json()["kernels"] == []
    problem(stage.sandbox.get(kernel.path), 404, "not_found")


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_whenever_it_is_killed_every_cell_runs_once_and_has_one_end(
    stage: Stage, kills: int
) -> None:
    add_liar(stage.sandbox)  # files outlive it as well
    ends: dict[str, set[str]] = {}
    done = False

    def caller(number: int) -> None:
        """Sends one cell after the other, each until its end is known."""
        for step in range(1000):
            cell_id = f"c{number}-{step}"
            while not done:
                with suppress(httpx.HTTPError, AssertionError, json.JSONDecodeError):
                    with httpx.Client(timeout=5) as http:
                        path = f"{stage.daemon.url}/v1/sandboxes/{stage.sandbox_id}"
                        kernel = Kernel(Speaker(http, path), stage.kernel_id)
                        cell = kernel.run(marked(cell_id, "1"), cell_id=cell_id)
                    ends.setdefault(cell_id, set()).add(cell["outcome"])
                    break
            if done:
                return

    with ThreadPoolExecutor(3) as callers:
        running = [callers.submit(caller, number) for number in range(3)]
        try:
            for _ in range(kills):
                time.sleep(random.uniform(0.1, 1.0))  # noqa: S311 - the moment is what is tried
                stage.die()
        finally:
            done = True
        for each in running:
            each.result()
    ran = stage.ran()
    assert len(ran) == len(set(ran)), "a cell ran twice"
    assert ends
    assert set(ends) <= set(ran)
    assert all(outcomes == {"ok"} for outcomes in ends.values())
    for cell_id in sorted(set(ran) - set(ends)):
        assert stage.kernel.ended(cell_id)["outcome"] == "ok"
