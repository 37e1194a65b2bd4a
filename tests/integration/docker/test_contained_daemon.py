"""The daemon in a container beside its engine, by the Compose file of the examples: paths of the
two differ, and what one daemon leased, the next one adopts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd.backends.docker.labels import BOX
from sandboxd_client import Sandboxd
from scripts.images.daemon import build_daemon_image
from scripts.images.daemon_root import requirements
from tests.support.daemon import ROOT
from tests.support.engine import load_test_image, missing
from tests.support.far_engine import FarEngine, far_engine

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

_KEY = "of-this-test-alone"
_CONFIG = ("--config", "/etc/sandboxd/sandboxd.toml")
_COMMAND_S = 120
_UP_S = 60


@dataclass(frozen=True)
class Composed:
    """The services of the example, on an engine of their own."""

    engine: FarEngine
    folder: Path

    @property
    def url(self) -> str:
        return f"http://{self.engine.address}:8420"

    def compose(self, *words: str) -> str:
        env = {
            **os.environ,
            "DOCKER_HOST": self.engine.host,
            "SANDBOXD_ADDRESS": self.engine.address,
            "SANDBOXD_ENGINE": self.engine.host.removeprefix("unix://"),
        }
        command = [*_program(), "--project-name", "beside", *words]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def boxes(self) -> set[str]:
        """The ids of the containers that are sandboxes."""
        with closing(self.engine.client()) as api:
            return {box["Id"] for box in api.containers(all=True, filters={"label": [BOX]})}

    def daemon(self) -> tuple[int, str]:
        """The daemon's process, and its health in the engine's eyes."""
        with closing(self.engine.client()) as api:
            state = api.inspect_container("beside_sandboxd_1")["State"]
        return int(state["Pid"]), str(state["Health"]["Status"])


def _program() -> list[str]:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    return ["docker", "compose", "--compatibility"]


def _gap() -> str:
    if gap := missing():
        return gap
    ask = subprocess.run([*_program(), "version"], capture_output=True, check=False)
    return "" if ask.returncode == 0 else "no Compose: apt-get install docker-compose"


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    if gap := _gap():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(gap)
    folder = tmp_path / "compose"
    shutil.copytree(ROOT / "examples" / "compose", folder)
    (folder / "api-key").write_text(_KEY)
    (folder / "api-key").chmod(0o600)
    with far_engine() as engine:
        image = load_test_image(engine)
        with closing(engine.client()) as client:
            build_daemon_image(client, base=image, wheels=wheels(tmp_path / "wheels"))
        yield Composed(engine, folder)


def wheels(folder: Path) -> Path:
    """What the daemon's image needs, since its engine reaches no index."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    command += requirements().splitlines()
    subprocess.run(command, check=True, timeout=300)
    return folder


def eventually(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_daemon_beside_its_engine_leases_and_the_next_one_adopts(composed: Composed) -> None:
    composed.compose("up", "-d")
    try:
        eventually(lambda: composed.daemon()[1] == "healthy", within_s=_UP_S, what="it is healthy")
        with Sandboxd(composed.url, key=_KEY) as client:
            sandbox = client.lease("python")
            assert sandbox.exec("echo $((6 * 7)) | tee kept").stdout == "42\n"
            sandbox.start(["/bin/sh", "-c", "sleep 8; echo late"], exec_id="job")
        eventually(lambda: len(composed.boxes()) == 3, within_s=_UP_S, what="the pool is full")
        before = composed.boxes()
        first, _ = composed.daemon()
        os.kill(first, signal.SIGKILL)  # the engine starts it again, by its restart policy
        eventually(lambda: composed.daemon()[0] not in {0, first}, within_s=_UP_S, what="again up")
        with Sandboxd(composed.url, key=_KEY, patience_s=_UP_S) as client:
            again = client.sandbox(sandbox.id)
            assert again.process("job").wait().stdout == "late\n"
            assert again.files.read("kept") == b"42\n"
            assert composed.boxes() == before, "stock was made anew, or lost"
            again.release(wait_s=30)
        composed.compose("stop")
        told = composed.compose("run", "--rm", "-T", "sandboxd", "sweep", "--all", *_CONFIG)
        assert not composed.boxes(), told
    finally:
        print(composed.compose("logs", "--no-color")[-4000:])
        composed.compose("down", "--volumes")
    with closing(composed.engine.client()) as api:
        assert api.containers(all=True) == []
        assert api.volumes()["Volumes"] in ([], None)
