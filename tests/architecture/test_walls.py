"""Imports go down only: the contracts of pyproject.toml hold, and bite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

LINT = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "client")])}
    return subprocess.run(
        LINT, cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.timeout(90)
def test_every_import_contract_is_kept() -> None:
    answer = lint(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("place", "planted", "contract"),
    [
        ("sandboxd/pool/__init__.py", "import sandboxd.leases", "Imports go down only"),
        ("sandboxd/wire/__init__.py", "import sandboxd.model", "Imports go down only"),
        (
            "sandboxd/backends/fake/__init__.py",
            "import sandboxd.backends.local",
            "Backends are strangers",
        ),
        (
            "sandboxd/leases/__init__.py",
            "import sandboxd.backends.local",
            "Only the composition root",
        ),
        (
            "sandboxd/api/__init__.py",
            "import sandboxd_client",
            "Only the command line uses the SDK",
        ),
        (
            "client/sandboxd_client/__init__.py",
            "import sandboxd.errors",
            "The SDK knows of the daemon",
        ),
    ],
)
def test_a_planted_import_breaks_its_contract(
    tmp_path: Path, place: str, planted: str, contract: str
) -> None:
    rooms = [
        "api",
        "leases",
        "pool",
        "wire",
        "model",
        "backends",
        "backends/fake",
        "backends/local",
    ]
    for folder in ["sandboxd", "client/sandboxd_client", *(f"sandboxd/{room}" for room in rooms)]:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    for module in ("errors", "backends/protocol"):
        (tmp_path / f"sandboxd/{module}.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    assert lint(tmp_path).returncode == 0

    (tmp_path / place).write_text(planted, encoding="utf-8")
    answer = lint(tmp_path)
    assert answer.returncode != 0
    assert f"{contract}" in answer.stdout.replace("\n", " ").split("Contracts:")[-1], answer.stdout
