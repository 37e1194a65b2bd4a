"""verifiers over the SDK: the example of its runtime, and the Python tool on a kernel."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon import ROOT, run_daemon
from tests.support.foreign.breaking import breaking, kill_the_leased_box
from tests.support.foreign.environments import environment
from tests.support.foreign.evals import template_for_harnesses
from tests.support.foreign.openai_server import Call, Script, Turn, scripted_model, turns
from tests.support.foreign.running import environ, told_by
from tests.support.pages import free_port
from tests.support.service import service

# Making an environment of foreign packages takes a minute, once.
pytestmark = pytest.mark.timeout(400)

SCRIPT = turns(
    Turn(calls=[Call("bash", {"command": "echo 42 > answer.txt"})]),
    Turn("done"),
)
WITH_KERNELS = """
[templates.python]
image = "host"
kernels = ["python3"]
pool = {ready = 1, max = 2}
"""


def example(script: Script, *, folder: Path, daemon: str) -> str:
    """What the example prints, whose model says that."""
    with scripted_model(script) as model:
        more = {
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "any",
        }
        done = subprocess.run(
            [str(environment("verifiers") / "python"), str(ROOT / "examples/verifiers_rollout.py")],
            env={**environ(folder / "home", daemon=daemon), **more},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_example_of_the_runtime_is_rewarded(tmp_path: Path) -> None:
    config = template_for_harnesses(model_port=free_port())
    with run_daemon(tmp_path, backend="local", config=config) as daemon:
        assert example(SCRIPT, folder=tmp_path, daemon=daemon.url) == "written 1.0\n"


@pytest.mark.slow
def test_a_box_that_is_killed_under_the_agent_is_told_as_no_doing_of_its_own(
    tmp_path: Path,
) -> None:
    config = template_for_harnesses(model_port=free_port())
    with service(tmp_path, config=config, port=free_port()) as daemon:
        broken = breaking(SCRIPT, partial(kill_the_leased_box, daemon), turn=1)
        said = example(broken, folder=tmp_path, daemon=daemon.url)
    assert said.startswith("not the agent's doing: leave this rollout out: SandboxError")
    assert "written" not in said


def test_a_box_runs_feeds_kills_and_tells_what_is_no_doing_of_a_command(tmp_path: Path) -> None:
    with run_daemon(tmp_path, backend="local", config=WITH_KERNELS) as daemon:
        told = told_by("native_box", client="verifiers", daemon=daemon.url, home=tmp_path / "home")
    assert told["run"] == ["/app\none\n", "err\n", 3]
    assert (told["said"], told["before"], told["status"]) == ("got a\n", None, 137)
    assert (told["rest"], told["file"]) == ([], 256)
    assert "no such file" in told["missing"]
    assert "byte limit" in told["large"]
    assert ("lease_ended" in told["gone"], told["alive"]) == (True, False)


def test_the_python_tool_keeps_its_variables_in_a_kernel(tmp_path: Path) -> None:
    codes = ["x = 40 + 2\nprint('set')", "x", "1 / 0"]
    calls = [Turn(calls=[Call("python", {"code": code})]) for code in codes]
    with (
        run_daemon(tmp_path, backend="local", config=WITH_KERNELS) as daemon,
        scripted_model(turns(*calls, Turn("done"))) as model,
    ):
        told = told_by(
            "classic", "kernel", model.url,
            client="classic", daemon=daemon.url, home=tmp_path / "home", within_s=120,
        )["kernel"]  # fmt: skip
    assert told["errors"] == []
    first, second, third = told["tools"]
    assert (first, second, "ZeroDivisionError" in third) == ("set", "42", True)
    assert told["rewards"] == [1.0]
