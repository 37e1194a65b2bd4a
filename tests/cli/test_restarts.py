"""What runs inside, for people whose daemon is started anew meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd_client import Sandboxd
from tests.support.daemon import ROOT
from tests.support.nginx import free_port
from tests.support.service import service

pytestmark = pytest.mark.timeout(120)

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 0, max = 2}
"""
NOBODY = "http://127.0.0.1:9"
LONGER_S = 3.0  # than a person waits for a wrong address
COMMAND = ["sh", "-c", "echo on; until [ -e go ]; do sleep 0.05; done; echo off"]


def popen(*argv: str, url: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    return subprocess.Popen(
        [sys.executable, "-m", "sandboxd", *argv],
        env=os.environ | {"PYTHONPATH": paths, "SANDBOXD_API_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_is_waited_for_while_the_daemon_is_gone(tmp_path: Path) -> None:
    with (
        service(tmp_path, config=CONFIG, port=free_port()) as running,
        Sandboxd(running.url) as client,
        client.lease("python") as sandbox,
        popen("exec", "-n", sandbox.id, "--", *COMMAND, url=running.url) as program,
    ):
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "on\n"
            running.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(LONGER_S)
            running.start()
            sandbox.files.write("go", "")
            out, err = program.communicate(timeout=30)
        finally:
            program.kill()
        assert (program.returncode, out) == (0, "off\n"), err


@pytest.mark.parametrize("argv", [["exec", "x", "--", "true"], ["shell", "x"], ["kernel", "x"]])
def test_a_wrong_address_is_said_soon(argv: list[str]) -> None:
    with popen(*argv, url=NOBODY) as program:
        try:
            _, err = program.communicate(timeout=15)
        finally:
            program.kill()
    assert program.returncode == 125
    assert err.startswith(f"sandboxd: no daemon at {NOBODY}")
