"""Podman's service with everything private below one folder: started, and all of it gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker

from tests.support.engine import load_image_of_tests
from tests.support.engine_traces import mounts_below, remove_cgroups, unmount_all

_CGROUP = "libpod_parent"  # what is empty of it goes; another Podman's stays
_START_S = 30.0
_END_S = 20.0
_CALL_S = 60
_POLL_S = 0.02


def missing() -> str:
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0:
        return "Podman's service of the tests' own needs root"
    return "" if shutil.which("podman") else "no Podman: apt-get install podman crun"


class PodmanEngine:
    """The service, at `host`. All methods block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = f"unix://{directory}/p.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # The usual ones are higher than a root without CAP_SYS_RESOURCE may set.
        # Podman 4.3 takes the soft for the hard one of these, so both are the same.
        limits = ["nofile=4096:4096", "nproc=4096:4096"]
        text = f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n"
        (self.directory / "containers.conf").write_text(text)
        with (self.directory / "p.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._podman(), "system", "service", "--time", "0", self.host],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "CONTAINERS_CONF": str(self.directory / "containers.conf"),
                    "TMPDIR": str(self.directory),  # images that are loaded stay there as files
                },
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert time.monotonic() < deadline, (self.directory / "p.log").read_text()[-2000:]
            time.sleep(_POLL_S)

    def client(self) -> docker.APIClient:
        """A low-level client; the caller closes it."""
        return docker.APIClient(base_url=self.host, version="1.40", timeout=_CALL_S)

    def close(self) -> None:
        """Remove every container, end the service, and remove its folder."""
        remove = [*self._podman(), "rm", "--all", "--force", "--volumes", "--time", "0"]
        subprocess.run(remove, check=False, capture_output=True, timeout=_CALL_S)
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_END_S)
        unmount_all(self.directory)
        remove_cgroups(_CGROUP)
        shutil.rmtree(self.directory, ignore_errors=True)
        left = mounts_below(self.directory)
        assert not left, left
        assert not self.directory.exists()

    def _podman(self) -> list[str]:
        place = self.directory
        return [
            *("podman", "--root", str(place / "data"), "--runroot", str(place / "run")),
            *("--tmpdir", str(place / "tmp"), "--cgroup-manager", "cgroupfs"),
            *("--storage-driver", "overlay", "--events-backend", "file"),
            *("--runtime", _runtime()),
        ]

    def _answers(self) -> bool:
        with closing(socket.socket(socket.AF_UNIX)) as line, suppress(OSError):
            line.settimeout(_CALL_S)
            line.connect(self.host.removeprefix("unix://"))
            line.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in line.recv(64)
        return False


def _runtime() -> str:
    """Its own is crun, which takes no machine where both versions of control groups have some."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return "crun" if unified or not shutil.which("runc") else "runc"


@contextmanager
def podman_engine() -> Iterator[tuple[PodmanEngine, str]]:
    """One that runs and has the test image: it, and the image's reference."""
    started = PodmanEngine(Path(tempfile.mkdtemp(prefix="sbx-pod-")))
    try:
        started.start()
        with closing(started.client()) as client:
            image = load_image_of_tests(client)
        yield started, image
    finally:
        started.close()
