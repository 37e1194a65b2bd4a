"""Inspect with our provider: its own checks, and an evaluation with a scripted model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.contract.columns import below_of, column_of
from tests.support.daemon import ROOT, run_daemon
from tests.support.foreign.environments import environment
from tests.support.foreign.running import environ, told_by

# Making an environment of foreign packages takes a minute, once.
pytestmark = pytest.mark.timeout(400)

CONFIG = """
[templates.python]
image = "{image}"
user = "nobody"
resources = {{cpu = 1.0, memory_mb = 1024, pids = 256, disk_mb = 2048}}
pool = {{ready = 2, max = 8}}

{table}
"""
CHECKS = ROOT / "tests/support/foreign/programs/inspect_checks"
EXAMPLE = ROOT / "examples/inspect_task.py"


@pytest.mark.parametrize(
    ("backend", "passed"),
    [
        # As root. Files of the machine's own /etc are nobody's inside, so no user is added there.
        pytest.param("local", 43, marks=pytest.mark.slow),
        pytest.param("docker", 44, marks=pytest.mark.docker),
    ],
)
def test_its_own_checks_pass(
    backend: str, passed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    column = column_of(below_of(backend, request))
    config = CONFIG.format(image=column.image, table=column.table)
    words = [str(environment("inspect") / "python"), "-m", "pytest", "-q", "checks.py"]
    words += ["-p", "no:cacheprovider"]
    if backend == "local":
        words += ["--deselect", "checks.py::test_exec_as_user"]
    with run_daemon(tmp_path, backend=backend, config=config) as daemon:
        done = subprocess.run(
            words,
            env=environ(tmp_path / "home", daemon=daemon.url),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=200, check=False, cwd=CHECKS,
        )  # fmt: skip
    assert re.search(r"(\d+) passed", done.stdout), done.stdout
    assert f"{passed} passed" in done.stdout, done.stdout


def installed(place: Path) -> Path:
    """A folder in which Inspect finds what an installed `sandboxd` says of itself."""
    (facts,) = Path(sysconfig.get_path("purelib")).glob("sandboxd-*.dist-info")
    shutil.copytree(facts, place / facts.name)
    return place


def evaluate(folder: Path, *, break_it: bool = False) -> dict[str, Any]:
    """The example over a daemon of its own. break_it: take the sandbox away in the middle."""
    with run_daemon(
        folder, backend="local", config=CONFIG.format(image="host", table="")
    ) as daemon:
        told: dict[str, Any] = told_by(
            "inspect_eval", str(EXAMPLE), *([daemon.url] if break_it else []),
            client="inspect", daemon=daemon.url, home=folder / "home", within_s=120,
            more_path=str(installed(folder / "installed")),
        )  # fmt: skip
    return told


def test_an_evaluation_finds_the_provider_and_is_scored(tmp_path: Path) -> None:
    told = evaluate(tmp_path)
    assert (told["status"], told["error"]) == ("success", None)
    assert told["tools"] == ["42\n", "42\n"]
    assert told["scores"] == ["C"]


def test_a_sandbox_that_is_taken_away_is_an_error_and_never_a_score(tmp_path: Path) -> None:
    told = evaluate(tmp_path, break_it=True)
    assert (told["status"], told["scores"]) == ("error", [])
    assert "the lease ended: released" in told["error"]
