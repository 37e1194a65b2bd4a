"""Jupyter starts its kernels in sandboxes: the kernel provisioner `sandboxd`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from tests.support.daemon import ROOT, RunningDaemon
from tests.support.jupyter import until

pytestmark = pytest.mark.timeout(150)

PROGRAM = Path(__file__).with_name("provisioned_program.py")
STANZA = {
    "provisioner_name": "sandboxd",
    "config": {"template": "python", "kernel": "python3", "env": {"HELLO": "there"}},
}


def run_program(verb: str, daemon: RunningDaemon, folder: Path) -> dict[str, Any]:
    spec = folder / "kernels" / "sandboxed" / "kernel.json"
    spec.parent.mkdir(parents=True)
    metadata = {"kernel_provisioner": STANZA}
    spec.write_text(
        json.dumps({"argv": [], "display_name": "x", "language": "python", "metadata": metadata})
    )
    paths = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        "JUPYTER_PATH": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "SANDBOXD_API_URL": daemon.url,
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), verb],
        env={**os.environ, **paths},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(autouse=True)
def installed() -> None:
    """The entry point is there, as every installation of ours has it."""
    found = {each.name for each in KernelProvisionerFactory._get_all_provisioners()}
    assert "sandboxd" in found


def test_jupyter_client_starts_interrupts_restarts_and_ends_a_kernel_in_a_sandbox(
    daemon: RunningDaemon, http: httpx.Client, tmp_path: Path
) -> None:
    told = run_program("blocking", daemon, tmp_path)
    assert told == {
        "where": ["/workspace there\n"],
        "secrets": ["[]\n"],
        "interrupted": ["KeyboardInterrupt"],
        "kept": ["1\n"],
        "restarted False": ["NameError"],
        "restarted True": ["NameError"],
        "alive": True,
        "alive after its end": False,
        "revived": ["again\n"],
        "alive at last": False,
    }
    assert http.get("/v1/sandboxes").json()["sandboxes"] == []


def test_several_kernels_of_one_program_have_a_sandbox_each(
    daemon: RunningDaemon, http: httpx.Client, tmp_path: Path
) -> None:
    told = run_program("asynchronous", daemon, tmp_path)
    assert told == {"printed": ["0\n", "1\n"], "alive at last": [False, False]}
    assert http.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_program_that_ends_without_a_word_ends_at_once_and_keeps_no_sandbox(
    daemon: RunningDaemon, http: httpx.Client, tmp_path: Path
) -> None:
    assert run_program("leave", daemon, tmp_path) == {"alive": True}
    until(lambda: http.get("/v1/sandboxes").json()["sandboxes"] == [])
