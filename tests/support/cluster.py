"""A Kubernetes cluster of the tests' own: one node, started, hurt, stopped, and all of it gone.

`python -m tests.support.cluster -- COMMAND…` runs a command beside one that holds the images of
the tests, and tells it by SANDBOXD_TEST_CLUSTER (a folder) and KUBECONFIG.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.images.archive import ImageWords, write_archive
from scripts.images.cache import cached_tar
from scripts.images.guest import write_guest_image
from scripts.images.recipe import PATH, ROOT
from tests.support.cluster_tools import tool
from tests.support.cluster_traces import PREFIX, orphans, take_down, traces

DIRECTORY_VARIABLE = "SANDBOXD_TEST_CLUSTER"
SCRIPTS_VARIABLE = "SANDBOXD_TEST_CLUSTER_SCRIPTS"
POD_IMAGE, GUEST_IMAGE = "sandboxd/python:latest", "sandboxd/guest:latest"

_PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "etcd": "etcd-server",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "curl": "curl",
    "gcc": "gcc",
}
_CNI = Path("/usr/lib/cni/bridge")
_LOCK = Path(tempfile.gettempdir()) / "sandboxd-test-cluster.lock"
_SERVER = "kube-apiserver"
_START_S = 300.0
_STARTS = 3
_STOP_S = 180.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def scripts() -> Path:
    """Where the scripts lie that boot it, whether or not they are there."""
    return Path(os.environ.get(SCRIPTS_VARIABLE, ROOT.parent / "shared" / "k8s"))


def nothing_to_boot() -> str:
    """Why no package would make a cluster possible here; empty if one could."""
    if os.geteuid() != 0:
        return "a cluster of the tests' own needs root"
    if not (scripts() / "start.sh").is_file():
        return f"{scripts()} has no start.sh: name its folder by {SCRIPTS_VARIABLE}"
    if not any((scripts() / "dist").glob("k8s-*.tar.xz")):
        return f"{scripts()} has no binaries of Kubernetes below dist/"
    return ""


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    if gap := nothing_to_boot():
        return gap
    if gaps := packages_missing():
        return f"not installed here: apt-get install {' '.join(gaps)}"
    return ""


def packages_missing() -> list[str]:
    """Of Debian, for what the cluster runs and is not on this machine."""
    found = [package for name, package in _PROGRAMS.items() if shutil.which(name) is None]
    return found if _CNI.exists() else [*found, "containernetworking-plugins"]


class TestCluster:
    """One node with all its state below `directory`. All methods block.

    Its bridge and its ports have fixed names, so that there can be one on a machine at a time.
    """

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "etc" / "admin.kubeconfig"
        self._forwarding = Path("/proc/sys/net/ipv4/ip_forward")
        self._forwarded = self._forwarding.read_text()

    def start(self, **told: str) -> None:
        """Boot it, or whatever of it does not run, and wait until it takes pods.

        The script is run again where it gives up. It pipes into `grep -q` under `pipefail`: where
        grep is done before the other has written all, what is there counts as missing now and
        then. told: variables of the script; KUBE_PROXY="1" has Services lead somewhere.
        """
        for _ in range(_STARTS - 1):
            if self._script("start.sh", timeout_s=_START_S, **told):
                return
        started = self._script("start.sh", timeout_s=_START_S, **told)
        assert started, f"no cluster: {self.last_words()}"

    def bring(self) -> None:
        """Bring the images in that pods of the tests are made of."""
        architecture = _ARCHITECTURES[os.uname().machine]
        env = {"PATH": PATH, "LANG": "C.UTF-8"}
        words = ImageWords(reference=POD_IMAGE, architecture=architecture, env=env)
        self.bring_archive(lambda into: write_archive(cached_tar("python"), into, words=words))
        self.bring_archive(
            lambda into: write_guest_image(into, reference=GUEST_IMAGE, architecture=architecture)
        )

    def bring_archive(self, write: Callable[[Path], None]) -> None:
        """Bring an image in that is written to a file, as `docker save` has it."""
        archive = self.directory / "images" / f"brought-{os.getpid()}.archive"
        write(archive)
        self._shell(f'kctr images import "{archive}" >/dev/null')
        archive.unlink()

    def pid(self, program: str) -> int:
        """The process of one of its programs, as `kubelet`."""
        return int((self.directory / "run" / "pids" / program).read_text())

    def end(self, program: str) -> None:
        """SIGKILL to one of its programs; `start` starts it again."""
        pid = self.pid(program)
        pidfd = os.pidfd_open(pid)
        try:
            if program not in os.readlink(f"/proc/{pid}/exe"):  # noqa: PTH115 - may be deleted
                raise AssertionError(f"process {pid} is no {program}")
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _wait_gone(pidfd)
        finally:
            os.close(pidfd)

    def restart_server(self) -> None:
        """The API server ends and starts anew."""
        self.end(_SERVER)
        self.start()

    def token(self) -> str:
        """A bearer token that may do everything."""
        return (self.directory / "etc" / "tokens.csv").read_text().partition(",")[0]

    def kubectl(self, *words: str) -> str:
        """What kubectl says. Raises CalledProcessError."""
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            [tool("kubectl"), *words], env=environ, check=True, capture_output=True, text=True
        )
        return done.stdout

    def close(self) -> None:
        """Stop it and remove all it made, its directory too.

        Raises AssertionError where something of it is still there.
        """
        take_down(self.directory, scripts())
        self._forwarding.write_text(self._forwarded)
        left = traces(self.directory)
        assert left == [], f"left of the tests' cluster: {left}"

    def _script(self, name: str, *, timeout_s: float, **told: str) -> bool:
        with (self.directory / "log").open("ab") as log:
            done = subprocess.run(
                ["bash", str(scripts() / name)],
                env=self._environ() | told,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
                check=False,
            )
        return done.returncode == 0

    def _shell(self, command: str) -> None:
        sourced = f'. "{scripts()}/env.sh"; {command}'
        subprocess.run(["bash", "-c", sourced], env=self._environ(), check=True, timeout=_STOP_S)

    def _environ(self) -> dict[str, str]:
        return {**os.environ, "K8S": str(self.directory)}

    def last_words(self) -> str:
        """The end of what its scripts said."""
        lines = (self.directory / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-12:])


def _wait_gone(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(10_000), "it did not end"


@contextmanager
def cluster() -> Iterator[TestCluster]:
    """A running cluster with the images in it; at the end all of it is gone."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for orphan in orphans():  # whoever had it was killed; with the lock held nobody has it
            take_down(orphan, scripts())
        started = TestCluster(Path(tempfile.mkdtemp(prefix=PREFIX)))
        try:
            started.start()
            started.bring()
            yield started
        finally:
            started.close()


@contextmanager
def cluster_for_tests() -> Iterator[TestCluster]:
    """The one that the variable names, else one started here."""
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        yield TestCluster(Path(directory))
        return
    with cluster() as started:
        yield started


def main(argv: list[str]) -> int:
    """Run the command with a cluster beside it. Its status; 1 where no cluster can be had."""
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        print("usage: python -m tests.support.cluster -- COMMAND…", file=sys.stderr)
        return 2
    if gap := missing():
        print(f"cluster: {gap}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    with cluster() as started:
        print(f"cluster: up, with its images, in {time.monotonic() - begun:.1f} s", flush=True)
        told = {DIRECTORY_VARIABLE: str(started.directory), "KUBECONFIG": str(started.kubeconfig)}
        status = subprocess.run(command, env=os.environ | told, check=False).returncode
        ended = time.monotonic()
    print(f"cluster: gone, with all it made, in {time.monotonic() - ended:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
