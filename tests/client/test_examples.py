"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from tests.support.daemon import ROOT, run_daemon

WITH_KERNELS = """
[templates.python]
image = "host"
kernels = ["python3"]
pool = {ready = 1, max = 2}
"""


def run_example(name: str, *argv: str, url: str) -> subprocess.CompletedProcess[str]:
    """An example to its end."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *argv],
        env={**os.environ, "SANDBOXD_API_URL": url, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )


def test_the_first_rollout_of_the_readme_runs(daemon_url: str) -> None:
    done = run_example("first_rollout.py", url=daemon_url)
    assert (done.returncode, done.stdout) == (0, "reward 1.0\n"), done.stderr


def test_a_rollout_in_a_notebook_runs_and_is_written_down(tmp_path: Path) -> None:
    book = tmp_path / "rollout.ipynb"
    with run_daemon(tmp_path, backend="local", config=WITH_KERNELS) as daemon:
        done = run_example("notebook_rollout.py", str(book), url=daemon.url)
    assert done.returncode == 0, done.stderr
    *steps, errors, reward = done.stdout.splitlines()
    assert (errors, reward) == ("errors on the way: TypeError", "reward 1.0")
    assert len(steps) == 8
    told = nbformat.read(book, as_version=4)
    nbformat.validate(told)
    assert [cell.cell_type for cell in told.cells] == ["markdown", *["code"] * 4]
    assert told.cells[2].outputs[0].ename == "TypeError"


def test_rollouts_with_a_server_each_and_one_for_both(tmp_path: Path) -> None:
    place = ROOT / "examples" / "mcp"
    config = (place / "sandboxd.toml").read_text().replace("/opt/sandboxd/examples/mcp", str(place))
    with run_daemon(tmp_path, backend="local", config=config) as daemon:
        done = run_example("mcp/rollouts.py", url=daemon.url)
    assert done.returncode == 0, done.stderr
    meaning = "the right to use a sandbox for a time"
    assert sorted(done.stdout.splitlines()) == [f"ada: {meaning}", f"bob: {meaning}"]


def test_the_readme_shows_the_example_as_it_stands() -> None:
    example = (ROOT / "examples" / "first_rollout.py").read_text()
    shown = example[example.index("import anyio") :]
    assert f"```python\n{shown}```\n" in (ROOT / "README.md").read_text()
