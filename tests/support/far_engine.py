"""A container engine on another machine, as good as: in a network namespace of its own, which one
pair of interfaces joins to ours. It listens on TCP there, and publishes ports there.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.engine import TestEngine
from tests.support.engine_traces import PREFIX

_PORT = 2375


class FarEngine(TestEngine):
    """Reached at `tcp`; by the tests themselves also at `host`, its Unix socket.

    tls: makes, for its address, a folder with `ca.pem`, `server-cert.pem` and `server-key.pem`;
    None: it lets anybody in.
    """

    def __init__(self, directory: Path, *, tls: Callable[[str], Path] | None = None) -> None:
        super().__init__(directory, networks=True)
        number, self._interfaces = _join()
        self.address = f"10.213.{number}.2"
        self.tcp = f"tcp://{self.address}:{_PORT}"
        self._our_address = f"10.213.{number}.1"
        self._make_keys = tls
        self._tls: Path | None = None

    def start(self) -> None:
        """Start it and join its network to ours."""
        if self._make_keys is not None:
            self._tls = self._make_keys(self.address)
        super().start()
        ours, theirs = self._interfaces
        inside = ("nsenter", "--net", f"--target={self.pid}")
        _run("ip", "link", "set", theirs, "netns", str(self.pid))
        _run("ip", "address", "add", f"{self._our_address}/30", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run(*inside, "ip", "address", "add", f"{self.address}/30", "dev", theirs)
        _run(*inside, "ip", "link", "set", theirs, "up")

    def cut(self) -> None:
        """Take our end of the line down; `mend` brings it up again."""
        _run("ip", "link", "set", self._interfaces[0], "down")

    def mend(self) -> None:
        """Bring our end of the line up."""
        _run("ip", "link", "set", self._interfaces[0], "up")

    def close(self) -> None:
        """As the others; the interfaces go with the namespace, or here."""
        try:
            super().close()
        finally:
            link = ["ip", "link", "delete", self._interfaces[0]]
            subprocess.run(link, check=False, capture_output=True)

    def _command(self) -> list[str]:
        listen = ["--host", f"tcp://0.0.0.0:{_PORT}"]
        if self._tls is None:
            return [*super()._command(), *listen, "--tls=false"]
        named = [
            *("--tlsverify", "--tlscacert", str(self._tls / "ca.pem")),
            *("--tlscert", str(self._tls / "server-cert.pem")),
            *("--tlskey", str(self._tls / "server-key.pem")),
        ]
        return [*super()._command(), *listen, *named]


@contextmanager
def far_engine(*, tls: Callable[[str], Path] | None = None) -> Iterator[FarEngine]:
    """One that runs; at the end all of it is gone."""
    started = FarEngine(Path(tempfile.mkdtemp(prefix=PREFIX)), tls=tls)
    try:
        started.start()
        yield started
    finally:
        started.close()


def _join() -> tuple[int, tuple[str, str]]:
    """A pair of interfaces that is nobody else's, and the number of its network."""
    for number in random.sample(range(256), 256):
        ours, theirs = f"sbxfar{number}a", f"sbxfar{number}b"
        add = ["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs]
        if subprocess.run(add, check=False, capture_output=True).returncode == 0:
            return number, (ours, theirs)
    raise RuntimeError("no pair of interfaces can be made: `ip link add` fails")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
