"""A real coding agent inside a sandbox without a network, as the example runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EngineHost
from tests.support.daemon import ROOT, run_daemon
from tests.support.docker_service import docker_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the agent has 80 packages to install

EXAMPLE = ROOT / "examples" / "agent_in_the_box.py"
PYTHON = "3.11"  # of the sandboxes: Debian's, in the test image; on this machine, if it fits
CONFIG = """
[templates.agent]
image = {image}
mounts = [{{source = {packages}, target = "/opt/agent"}}]
resources = {{memory_mb = 1024}}
pool = {{ready = 0, max = 1}}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The agent, installed as the example says."""
    (agent,) = re.findall(r"pip install --target \S+ (\S+)", EXAMPLE.read_text())
    place = tmp_path_factory.mktemp("agent")
    fitting = ["--python-version", PYTHON, "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *fitting, "--target", place, agent]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            assert os.environ.get("CI") != "true", done.stderr
            pytest.skip(f"{agent} cannot be had here: {done.stderr[-300:]}")
        yield place
    finally:
        shutil.rmtree(place)


def run_example(url: str) -> tuple[int, str, str]:
    """Its exit status and what it said."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "SANDBOXD_API_URL": url, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def check_example(url: str, *, log: Path) -> None:
    """The agent mends the file with what the model says, and never has the model's key."""
    status, said, complained = run_example(url)
    assert (status, complained) == (0, ""), said
    assert "the agent ended with 0, the model was asked 4x\n" in said
    assert "its own key: the-forward-has-it; it saw the trainer's: False\n" in said
    assert said.endswith("reward 1.0\n")
    (key,) = re.findall(r'^KEY = "(.+)"$', EXAMPLE.read_text(), re.MULTILINE)
    assert key not in log.read_text()


def config(image: str, packages: Path) -> str:
    return CONFIG.format(image=json.dumps(image), packages=json.dumps(str(packages)))


def test_an_agent_in_a_sandbox_of_this_machine_reaches_its_model(
    packages: Path, tmp_path: Path
) -> None:
    ask = ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    if shutil.which(ask[0]) is None or subprocess.check_output(ask, text=True).strip() != PYTHON:
        pytest.skip(f"sandboxes of this machine have no Python {PYTHON}")
    with run_daemon(tmp_path, backend="local", config=config("host", packages)) as daemon:
        check_example(daemon.url, log=daemon.log)


@pytest.mark.docker
def test_an_agent_in_a_container_reaches_its_model(
    packages: Path, engine_host: EngineHost, tmp_path: Path
) -> None:
    on_engine = f"[backend.docker]\nhost = {json.dumps(engine_host.host)}\n"
    told = on_engine + config(engine_host.image, packages)
    with docker_service(tmp_path, engine_host.host, told) as (service, _):
        check_example(service.url, log=service.log)
