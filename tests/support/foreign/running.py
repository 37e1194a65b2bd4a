"""Programs of foreign clients, run by their own Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.daemon import ROOT
from tests.support.foreign.environments import environment

_PROGRAMS = Path(__file__).parent / "programs"


def environ(home: Path, *, daemon: str, more_path: str = "") -> dict[str, str]:
    """What their clients read: a home of their own, a key, and where the service is.

    more_path: what else their Python finds modules in.
    """
    home.mkdir(exist_ok=True)
    return {
        # Their packages are large, and imported by every program anew.
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "HOME": str(home),
        "PRIME_API_KEY": "any",
        "PRIME_API_BASE_URL": daemon,
        "FAKE_KEY": "any",
        "SANDBOXD_API_URL": daemon,
        "PYTHONPATH": os.pathsep.join(filter(None, [more_path, str(ROOT), str(ROOT / "client")])),
    }


def told_by(
    program: str,
    *argv: str,
    client: str,
    daemon: str,
    home: Path,
    within_s: float = 60,
    more_path: str = "",
) -> Any:
    """What a program prints, as JSON. client: the environment that it runs in."""
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [str(environment(client) / "python"), str(_PROGRAMS / f"{program}.py"), *argv],
        env=environ(home, daemon=daemon, more_path=more_path),
        capture_output=True, text=True, timeout=within_s, check=False, cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
