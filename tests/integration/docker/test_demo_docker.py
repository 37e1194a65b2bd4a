"""The demo and the doctor on a container engine, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import docker
import pytest

from tests.cli.conftest import ROOT
from tests.conftest import EngineHost

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]


def sandboxd(*argv: str, host: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *argv],
        env={**os.environ, "PYTHONPATH": path, "DOCKER_HOST": host},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def ours(host: str) -> list[str]:
    """The containers of the demo's installations; other tests' belong to theirs."""
    with closing(docker.APIClient(base_url=host, version="1.41")) as client:
        found = client.containers(all=True, filters={"label": ["sandboxd.label.pool=python"]})
        return [container["Id"] for container in found]


def test_the_demo_on_an_engine_judges_rightly_and_leaves_no_container(
    engine_host: EngineHost,
) -> None:
    said = sandboxd("demo", "--backend", "docker", "--limit", "4", host=engine_host.host)
    assert (said.returncode, said.stderr) == (0, ""), said.stdout + said.stderr
    assert "backend: docker" in said.stdout
    assert "reference solutions: 4 of 4 pass (must be 4), faults of ours: 0" in said.stdout
    assert "empty bodies: 0 of 4 pass (must be 0), faults of ours: 0" in said.stdout
    assert "sandboxes left over: 0" in said.stdout


def test_the_doctor_finds_an_engine_that_can_make_sandboxes(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    flags = ["--backend", "docker", "--state-dir", str(tmp_path / "state"), "-o", "json"]
    said = sandboxd("doctor", *flags, host=engine_host.host)
    assert said.returncode == 0, said.stdout + said.stderr
    checks = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    wanted = {"engine", "guests", "guest agent", "socket paths", "limits", "seccomp", "runtimes"}
    assert wanted | {"networks", "gpu", "disk", "descriptors"} <= set(checks)
    assert all(check["ok"] or check["mend"] for check in checks.values())
    assert not (tmp_path / "state").exists()


def test_no_engine_is_a_line_with_the_mend(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    said = sandboxd("doctor", "--backend", "docker", host=nowhere)
    assert said.returncode == 1
    assert "NO  engine: the container engine does not answer" in said.stdout
    assert "apt-get install docker.io" in said.stdout
