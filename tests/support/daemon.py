"""A real daemon as a process of its own, for tests that speak to it from outside."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent.parent

_START_S = 15.0
_STOP_S = 10.0
_GREETING = "listening on "


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that listens. `log` is where its standard error goes."""

    url: str
    pid: int
    log: Path


@contextmanager
def run_daemon(folder: Path, *, backend: str = "fake", config: str = "") -> Iterator[RunningDaemon]:
    """Start `sandboxd serve --ephemeral` on a free port; SIGTERM it at the end, and wait for it.

    folder: for its state, configuration and log. Raises AssertionError, with the log, if it does
    not start within 15 s or does not stop cleanly within 10 s.
    """
    (folder / "sandboxd.toml").write_text(config, encoding="utf-8")
    log = folder / "daemon.log"
    command = [sys.executable, "-m", "sandboxd", "serve", "--ephemeral", "--port", "0"]
    command += ["--backend", backend, "--config", str(folder / "sandboxd.toml")]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, cwd=folder
        )
    assert process.stdout is not None
    try:
        with process.stdout:
            line = _first_line(process.stdout)
        assert line.startswith(_GREETING), f"{line!r}\n{log.read_text(errors='replace')}"
        yield RunningDaemon(line.removeprefix(_GREETING).strip(), process.pid, log)
        process.send_signal(signal.SIGTERM)
        status = process.wait(_STOP_S)
        assert status == 0, f"the daemon ended with {status}\n{log.read_text(errors='replace')}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_STOP_S)


def _first_line(stream: IO[str]) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(_START_S) else ""
