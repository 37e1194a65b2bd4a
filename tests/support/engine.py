"""A container engine of the tests' own: started, stopped, killed, restarted, and all of it gone.

`python -m tests.support.engine -- COMMAND…` runs a command beside one that holds the test image,
and tells it by SANDBOXD_TEST_ENGINE (an address) and SANDBOXD_TEST_IMAGE (a reference).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker

from scripts.images.cache import cached_tar
from scripts.images.engine import load
from scripts.images.recipe import Recipe
from tests.support.engine_traces import (
    PREFIX,
    cgroup_name,
    claim,
    cut_off,
    orphans,
    take_down,
    traces,
)

ADDRESS_VARIABLE, IMAGE_VARIABLE = "SANDBOXD_TEST_ENGINE", "SANDBOXD_TEST_IMAGE"
TEST_IMAGE = "sandboxd/python:latest"
NO_IMAGE_VARIABLE = "SANDBOXD_TEST_NO_IMAGE"  # for commands that need none
MEND = "no container engine is installed here: apt-get install docker.io"

_RUN, _CONTAINERD_RUN = "exec", "cs"  # what a machine keeps in memory
_START_S = 60.0
_STOP_S = 60.0
_CALL_S = 60
_POLL_S = 0.02


def missing() -> str:
    """Why no engine can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "a container engine of the tests' own needs root"
    if shutil.which("dockerd") is None:
        return MEND
    return ""


class TestEngine:
    """dockerd with everything private below `directory`, which must be short: sockets lie in it.

    live_restore: containers outlive a stopped daemon. networks: in a network namespace of its own
    it has bridges and iptables as an engine usually has, and no way out; else it shares ours and
    can make no network. All methods block.
    """

    __test__ = False

    def __init__(
        self, directory: Path, *, live_restore: bool = False, networks: bool = False
    ) -> None:
        self.directory = directory
        self.host = f"unix://{directory}/d.sock"
        self.log = directory / "d.log"
        self._live_restore = live_restore
        self._networks = networks
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The daemon's process, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it on whatever its data root holds, and wait until it answers."""
        if self._containerd is None or self._containerd.poll() is not None:
            self._containerd = self._spawn(self._containerd_command())
        self._process = self._spawn(self._command())
        _wait(self._answers, _START_S, lambda: f"no engine: {self.last_words()}")

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        none = subprocess.DEVNULL
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=none, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self, *, timeout_s: float = _STOP_S) -> None:
        """SIGTERM, as a service's stop; waits for its end."""
        self._end(signal.SIGTERM, timeout_s=timeout_s)

    def kill(self) -> None:
        """SIGKILL: it has no time to say anything."""
        self._end(signal.SIGKILL, timeout_s=_STOP_S)

    def power_off(self) -> None:
        """As if its machine were: all that it runs ends at once, what lies in memory is gone."""
        self.kill()
        cut_off(self.directory)
        if self._containerd is not None:
            self._containerd.wait(_STOP_S)
        for name in (_RUN, _CONTAINERD_RUN):
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP: connections are taken, nothing is answered. `resume` ends it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def client(self) -> docker.APIClient:
        """A low-level client; the caller closes it."""
        return docker.APIClient(base_url=self.host, version="1.41", timeout=_CALL_S)

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])

    def close(self) -> None:
        """Remove all it made, end it and everything it started, and its directory. May be repeated.

        Raises AssertionError where something of it is still there.
        """
        with suppress(Exception):
            if self.pid is not None:
                self._remove_containers()
                self.stop()
        self._end(signal.SIGKILL, timeout_s=_STOP_S)
        take_down(self.directory)
        if self._containerd is not None:
            self._containerd.wait(_STOP_S)
        left = traces(self.directory)
        assert left == [], f"left of the tests' engine: {left}"

    def _containerd_command(self) -> list[str]:
        """A process of its own, as distributions run it: it outlives a dockerd that is killed."""
        place = self.directory
        disabled = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        (place / "containerd.toml").write_text(disabled)
        return [
            *("containerd", "--config", str(place / "containerd.toml"), "--log-level", "warn"),
            *("--root", str(place / "c"), "--state", str(place / _CONTAINERD_RUN)),
            *("--address", f"{place}/c.sock"),
        ]

    def _command(self) -> list[str]:
        place = self.directory
        (place / "daemon.json").write_text("{}\n")  # the machine's own settings are not ours
        command = [
            "dockerd",
            *("--config-file", str(place / "daemon.json"), "--host", self.host),
            *("--data-root", str(place / "data"), "--exec-root", str(place / _RUN)),
            *("--containerd", f"{place}/c.sock"),
            *("--pidfile", str(place / "d.pid"), "--log-level", "warn"),
            *("--cgroup-parent", f"/{cgroup_name(place)}"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs"),
        ]
        if self._live_restore:
            command.append("--live-restore")
        if self._networks:
            alone = 'ip link set lo up && exec "$@"'
            return ["unshare", "--net", "sh", "-c", alone, "sh", *command]
        return [*command, "--bridge=none", "--iptables=false", "--ip-forward=false"]

    def _answers(self) -> bool:
        if self.pid is None or self._containerd is None or self._containerd.poll() is not None:
            raise AssertionError(f"the engine ended: {self.last_words()}")
        with closing(socket.socket(socket.AF_UNIX)) as line, suppress(OSError):
            line.settimeout(_CALL_S)
            line.connect(self.host.removeprefix("unix://"))
            line.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in line.recv(64)
        return False

    def _remove_containers(self) -> None:
        client = self.client()
        try:
            for container in client.containers(all=True, quiet=True):
                with suppress(docker.errors.APIError):
                    client.remove_container(container["Id"], force=True, v=True)
        finally:
            client.close()

    def _end(self, number: signal.Signals, *, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a paused one would never hear
        process.send_signal(number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)


@contextmanager
def engine(
    directory: Path | None = None, *, live_restore: bool = False, networks: bool = False
) -> Iterator[TestEngine]:
    """A running engine; at the end all of it is gone, `directory` too.

    directory: where all of it lies (made if missing); by default a short temporary one. A pytest
    `tmp_path` is too long for its sockets.
    """
    place = directory or Path(tempfile.mkdtemp(prefix=PREFIX))
    place.mkdir(parents=True, exist_ok=True)
    claim(place)
    started = TestEngine(place, live_restore=live_restore, networks=networks)
    try:
        started.start()
        yield started
    finally:
        started.close()


def load_test_image(into: TestEngine, *, name: str = "python") -> str:
    """Load the cached test image, which is built if it must be. Its reference."""
    with closing(into.client()) as client:
        return load_image_of_tests(client, name=name)


def load_image_of_tests(client: docker.APIClient, *, name: str = "python") -> str:
    """The same for any engine."""
    recipe = Recipe()  # so that `make images` finds its own work done
    changes = recipe.changes(name, recipe.digest("debian"))
    reference = f"sandboxd/{name}:latest"
    return load(client, cached_tar(name), reference=reference, changes=changes)


@contextmanager
def engine_for_tests() -> Iterator[tuple[str, str]]:
    """Address and image: the ones that the variables name, else an engine started here."""
    if address := os.environ.get(ADDRESS_VARIABLE):
        yield address, os.environ.get(IMAGE_VARIABLE, TEST_IMAGE)
        return
    with engine() as started:
        yield started.host, load_test_image(started)


def _wait(condition: Callable[[], bool], timeout_s: float, words: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, words()
        time.sleep(_POLL_S)


def main(argv: list[str]) -> int:
    """Run the command with an engine beside it. Its status; 1 where no engine can be had."""
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        print("usage: python -m tests.support.engine -- COMMAND…", file=sys.stderr)
        return 2
    if gap := missing():
        print(f"engine: {gap}", file=sys.stderr)
        return 1
    # The command hears Ctrl-C itself. A SIGTERM to us counts as one, so that all is taken down,
    # also where Ctrl-C is ignored, as by what a shell runs in the background.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for orphan in orphans():  # whoever had it was killed, and nobody else ever looks after it
        print(f"engine: taking down what a killed run left: {orphan}")
        take_down(orphan)
    begun = time.monotonic()
    with engine() as started:
        up = time.monotonic()
        image = TEST_IMAGE if os.environ.get(NO_IMAGE_VARIABLE) else load_test_image(started)
        loaded = time.monotonic() - up
        print(f"engine: started in {up - begun:.1f} s, {image} loaded in {loaded:.1f} s")
        told = {ADDRESS_VARIABLE: started.host, IMAGE_VARIABLE: image}
        status = subprocess.run(command, env=os.environ | told, check=False).returncode
        ended = time.monotonic()
    print(f"engine: gone, with all it made, in {time.monotonic() - ended:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
