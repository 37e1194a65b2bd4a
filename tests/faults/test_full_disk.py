"""A state directory on a disk that is really full: 1 MiB, in a mount namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd_client import DiskFull, Fault, Sandboxd
from tests.support.daemon import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk: needs root")

CONFIG = '[templates.python]\nimage = "host"\npool = {ready = 1, max = 40}\n'
_MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'


@dataclass
class SmallDisk:
    """A daemon over the fake backend, and its disk."""

    url: str
    place: Path  # the disk, as seen from outside its namespace

    def fill(self) -> None:
        """Until not one byte more fits."""
        with (self.place / "filler").open("wb", buffering=0) as filler:
            for size in (4096, 1):
                try:
                    while filler.write(b"x" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give the room back."""
        (self.place / "filler").unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """The mount goes with the daemon: nobody else is in its namespace."""
    state, config = folder / "state", folder / "sandboxd.toml"
    state.mkdir()
    config.write_text(CONFIG, encoding="utf-8")
    serve = [sys.executable, "-m", "sandboxd", "serve", "--backend", "fake", "--port", "0"]
    flags = ["--config", str(config), "--state-dir", str(state)]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _MOUNT, str(state), *serve, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environ,
        )
    try:
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
            assert line.startswith("listening on "), (folder / "log").read_text()
            url = line.removeprefix("listening on ").strip()
            yield SmallDisk(url, Path(f"/proc/{process.pid}/root{state}"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (folder / "log").read_text()


def test_a_full_disk_refuses_leases_by_name_and_release_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk, Sandboxd(url=disk.url) as client:
        held = [client.lease("python") for _ in range(3)]
        disk.fill()
        refused: list[DiskFull] = []
        for _ in range(40):  # what the log has room for already may still go
            try:
                held.append(client.lease("python", labels={"k": "v" * 200}))
            except DiskFull as error:
                refused.append(error)
        assert refused
        told = {(error.fault, error.mask, error.retry_safe) for error in refused}
        assert told == {(Fault.INFRA, True, True)}
        assert "free some space" in refused[0].detail
        assert held[0].exec(["echo", "ok"]).stdout == "ok\n"
        for sandbox in held:
            assert sandbox.release(wait_s=5).state == "ended"
        assert client.pools()[0].leased == 0
        disk.free()
        again = client.lease("python")
        assert again.exec(["true"]).exit_code == 0
        again.release()
