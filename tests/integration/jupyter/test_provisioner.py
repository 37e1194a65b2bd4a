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
from tests.support.nginx import free_port
from tests.support.service import service

pytestmark = pytest.mark.timeout(150)

PROGRAM = Path(__file__).with_name("provisioned_program.py")
CONFIG = """
[templates.python]
image = "host"
pool = {ready = 0, max = 2}
"""
STANZA = {
    "provisioner_name": "sandboxd",
    "config": {"template": "python", "kernel": "python3", "env": {"HELLO": "there"}},
}


def popen(verb: str, url: str, folder: Path) -> subprocess.Popen[str]:
    """The program, with its kernelspec."""
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
        "TMPDIR": str(folder),  # where a program that is killed leaves what it wrote
        "SANDBOXD_API_URL": url,
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), verb],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def answer_of(program: subprocess.Popen[str]) -> dict[str, Any]:
    """What it printed, once it has ended well."""
    try:
        out, err = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def run_program(verb: str, daemon: RunningDaemon, folder: Path) -> dict[str, Any]:
    return answer_of(popen(verb, daemon.url, folder))


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
        "too large": ["MessageTooLarge"],
        "kept": ["1\n"],
        "restarted False": ["NameError"],
        "restarted True": ["NameError"],
        "alive": True,
        "alive after its end": False,
        "revived": ["again\n"],
        "alive at last": False,
    }
    assert http.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_kernel_whose_sandbox_is_lost_is_started_anew_in_another_for_the_same_clients(
    daemon: RunningDaemon, http: httpx.Client, tmp_path: Path
) -> None:
    told = run_program("replaced", daemon, tmp_path)
    assert told == {"alive": False, "printed": ["again\n"], "another": [True]}
    assert http.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_daemon_that_is_killed_loses_no_message_and_runs_nothing_twice(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG, port=free_port()) as running:
        with popen("outlived", running.url, tmp_path / "jupyter") as program:
            assert program.stderr is not None
            try:
                assert program.stderr.readline() == "on\n"
                running.kill()
                running.start()
            finally:
                told = answer_of(program)
        assert told == {
            "all printed": True, "all answered": True, "ran": ["['0', '0', '0']\n"],
        }  # fmt: skip


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
