"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.daemon import ROOT


def test_the_first_rollout_of_the_readme_runs(daemon_url: str) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "first_rollout.py")],
        env={**os.environ, "SANDBOXD_API_URL": daemon_url, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "reward 1.0\n"), done.stderr


def test_the_readme_shows_the_example_as_it_stands() -> None:
    example = (ROOT / "examples" / "first_rollout.py").read_text()
    shown = example[example.index("import anyio") :]
    assert f"```python\n{shown}```\n" in (ROOT / "README.md").read_text()
