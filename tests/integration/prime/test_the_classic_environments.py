"""verifiers' classic environments and the client of their time: the container dialect."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import run_daemon
from tests.support.foreign.breaking import breaking, kill_the_leased_box
from tests.support.foreign.openai_server import Call, Turn, scripted_model, turns
from tests.support.foreign.running import told_by
from tests.support.service import service

# Making an environment of foreign packages takes a minute, once.
pytestmark = pytest.mark.timeout(400)

# Those environments want a `python` in sandboxes, in login shells too.
CONFIG = """
[compat.prime]
images = {"python:3.11-slim" = "python"}

[templates.python]
image = "host"
env = {PATH = "/tmp/bin:/usr/local/bin:/usr/bin:/bin"}
setup = [
  "mkdir -p /tmp/bin && ln -s $(command -v python3) /tmp/bin/python",
  "echo 'PATH=/tmp/bin:$PATH' > $HOME/.profile",
]
resources = {cpu = 1.0, memory_mb = 2048, pids = 256, disk_mb = 5120}
pool = {ready = 1, max = 8}
"""
PYTHON = ["x = 40 + 2\nprint('set')", "x", "1 / 0"]
BASH = [
    "echo out; echo err >&2; pwd",
    "echo $$ > /tmp/pid; sleep 61",
    "kill -0 $(cat /tmp/pid) 2>/dev/null && echo alive || echo dead",
]
SAID = {
    "python": [Turn(calls=[Call("python", {"code": code})]) for code in PYTHON],
    "sandbox": [Turn(calls=[Call("bash", {"command": command})]) for command in BASH],
    "stateful": [Turn(calls=[Call("look", {"word": "w"})])],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One rollout of each environment."""
    place = tmp_path_factory.mktemp("classic")
    with run_daemon(place, backend="local", config=CONFIG) as daemon, ExitStack() as models:
        argv: list[str] = []
        for name, said in SAID.items():
            model = models.enter_context(scripted_model(turns(*said, Turn("done"))))
            argv += [name, model.url]
        found: dict[str, Any] = told_by(
            "classic", *argv, client="classic", daemon=daemon.url, home=place / "home", within_s=150
        )
    return found


def test_python_env_keeps_its_interpreter_over_three_calls(told: dict[str, Any]) -> None:
    rollout = told["python"]
    assert rollout["errors"] == []
    first, second, third = rollout["tools"]
    assert (first, second, "ZeroDivisionError" in third) == ("set", "Out[2]: 42", True)
    assert rollout["rewards"] == [1.0]


def test_sandbox_env_reports_the_time_out_of_a_call_and_goes_on(told: dict[str, Any]) -> None:
    """What timed out is dead: the next call finds none of it."""
    rollout = told["sandbox"]
    assert rollout["errors"] == []
    assert rollout["tools"] == [
        "out\n/workspace\nstderr:\nerr",
        "Error: Command timed out after 2s",
        "dead",
    ]
    assert rollout["rewards"] == [1.0]


def test_stateful_tool_env_needs_no_sandbox(told: dict[str, Any]) -> None:
    rollout = told["stateful"]
    assert (rollout["tools"], rollout["rewards"]) == (["w:kept"], [1.0])


def test_a_sandbox_that_is_killed_stops_its_rollout_with_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    """Which is there for whoever scores it: its reward functions run all the same."""
    with service(tmp_path, config=CONFIG) as daemon, ExitStack() as models:
        argv: list[str] = []
        for name in ("sandbox", "python"):
            script = turns(*SAID[name], Turn("done"))
            kill = partial(kill_the_leased_box, daemon)
            model = models.enter_context(scripted_model(breaking(script, kill, turn=1)))
            argv += [name, model.url]
        told = told_by(
            "classic", *argv,
            client="classic", daemon=daemon.url, home=tmp_path / "home", within_s=150,
        )  # fmt: skip
    (of_bash,), (of_python,) = (rollout["errors"] for rollout in told.values())
    assert "SandboxError" in of_bash
    assert "PythonWorker" in of_python or "SandboxError" in of_python
    assert [len(rollout["tools"]) for rollout in told.values()] == [1, 1]
