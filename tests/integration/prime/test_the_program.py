"""`prime`, the program of that service, over a daemon of ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import RunningDaemon
from tests.support.foreign.environments import environment
from tests.support.foreign.running import environ

# Making an environment of foreign packages takes a minute, once.
pytestmark = pytest.mark.timeout(400)


def test_the_program_makes_uses_and_deletes_a_sandbox(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    def prime(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(environment("prime") / "prime"), "sandbox", *words],
            env=environ(tmp_path / "home", daemon=daemon.url),
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    prime("create", "python:3.11-slim", "--name", "cli", "--env", "A=one", "--yes", "--plain")
    (made,) = json.loads(prime("list", "-o", "json"))["sandboxes"]
    assert "one\n" in prime("run", made["id"], "--", "sh", "-c", "echo $A; exit 3", status=3)
    (tmp_path / "up").write_text("hello\n")
    prime("upload", made["id"], "up", "/tmp/up.txt")
    prime("download", made["id"], "/tmp/up.txt", "down")
    assert (tmp_path / "down").read_text() == "hello\n"
    assert "leased" in prime("logs", made["id"])
    assert "blocked" in prime("network", made["id"], "--deny", "*")
    prime("delete", made["id"], "--yes")
    assert json.loads(prime("list", "-o", "json"))["sandboxes"] == []
