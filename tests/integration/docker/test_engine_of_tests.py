"""The tests' own engine: what the other tests here stand on, and that nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandboxd.guest.binary import guest_binary
from tests.support.engine import TestEngine, engine, missing
from tests.support.engine_traces import engine_processes, mounts_below

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

IMAGE = "guest:alone"
# The guest waits for a caller, so it is as good a container as any, and a small one.
COMMAND = ["/guest", "serve", "--socket", "/s.sock"]


@pytest.fixture(autouse=True)
def _an_engine_can_be_had() -> None:
    if gap := missing():
        pytest.skip(gap)


@pytest.fixture(params=[False, True], ids=["stopping", "live-restore"])
def running(request: pytest.FixtureRequest) -> Iterator[TestEngine]:
    with engine(live_restore=request.param) as started:
        yield started


def run_container(on: TestEngine, tmp_path: Path) -> str:
    """A container that lives until it is told to end."""
    tar = tmp_path / "root.tar"
    binary = guest_binary()
    flags = ["--transform=s,.*,guest,", "--mode=755", "--owner=0", "--group=0"]
    subprocess.run(["tar", "-C", binary.parent, "-cf", tar, *flags, binary.name], check=True)
    with closing(on.client()) as client:
        client.import_image_from_file(str(tar), repository="guest", tag="alone")
        made = client.create_container(
            IMAGE, command=COMMAND, network_disabled=True, stop_signal="SIGKILL"
        )
        client.start(made["Id"])
        return str(made["Id"])


def state(on: TestEngine, container: str) -> str:
    with closing(on.client()) as client:
        return str(client.inspect_container(container)["State"]["Status"])


def test_a_closed_engine_leaves_no_process_mount_group_or_directory(
    running: TestEngine, tmp_path: Path
) -> None:
    run_container(running, tmp_path)
    assert engine_processes(running.directory)
    assert mounts_below(running.directory)
    running.close()  # asserts that nothing is left
    assert not running.directory.exists()


def test_a_killed_engine_leaves_nothing_either(running: TestEngine, tmp_path: Path) -> None:
    run_container(running, tmp_path)
    running.kill()
    assert engine_processes(running.directory)
    running.close()


def test_an_engine_comes_back_on_what_it_had(running: TestEngine, tmp_path: Path) -> None:
    container = run_container(running, tmp_path)
    running.kill()
    assert running.pid is None
    running.start()
    assert state(running, container) in {"running", "exited"}


def test_an_engine_with_networks_has_a_bridge_and_leaves_ours_alone() -> None:
    before = sorted(Path("/sys/class/net").iterdir())
    with engine(networks=True) as started, closing(started.client()) as client:
        assert {"bridge", "host", "none"} <= {network["Name"] for network in client.networks()}
        client.create_network("more", driver="bridge")
        assert sorted(Path("/sys/class/net").iterdir()) == before


def test_a_command_beside_an_engine_gives_its_own_status() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.engine", "--", "sh", "-c", "exit 3"],
        env={**os.environ, "SANDBOXD_TEST_NO_IMAGE": "1"},
        check=False,
    )
    assert said.returncode == 3
