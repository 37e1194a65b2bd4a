"""A daemon that may be killed and started again over the same state directory."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import ROOT

_START_S = 60.0
_STOP_S = 15.0


class Service:
    """Not ephemeral: what it leaves is there for the next start. Without a `port` of its own, `url`
    changes with each start.
    """

    def __init__(
        self, folder: Path, *, backend: str = "local", config: str = "", port: int = 0
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "daemon.log"
        self.url = ""
        self._config = folder / "sandboxd.toml"
        self._config.write_text(config, encoding="utf-8")
        self._backend = backend
        self._port = str(port)
        self._process: subprocess.Popen[str] | None = None
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
        self.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "client")])

    def command(self, verb: str, *extra: str) -> list[str]:
        """A verb of the program over this service's state."""
        flags = ["--config", str(self._config), "--state-dir", str(self.state)]
        return [sys.executable, "-m", "sandboxd", verb, *flags, *extra]

    def start(self, *, within: Sequence[str] = ()) -> None:
        """Start it and wait until it listens. within: a command that is to run it."""
        serve = [*self.command("serve"), "--port", self._port, "--backend", self._backend]
        command = [*within, *serve]
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environ
            )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_START_S) else ""
        assert line.startswith("listening on "), self.log.read_text(errors="replace")
        self.url = line.removeprefix("listening on ").strip()

    @property
    def pid(self) -> int:
        """The running daemon's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the daemon's process is there."""
        return self._process is not None and self._process.poll() is None

    def rewrite(self, config: str) -> None:
        """Change the configuration and have it read again."""
        self._config.write_text(config, encoding="utf-8")
        self._signal(signal.SIGHUP)

    def kill(self) -> None:
        """kill -9."""
        self._signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """SIGTERM, and wait; its exit code."""
        self._signal(signal.SIGTERM)
        return self._wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        status = self._process.wait(_STOP_S)
        self._process.stdout.close()
        self._process = None
        return status

    def end(self) -> None:
        """End it, and every box it left."""
        if self._process is not None:
            self.kill()
        if self.state.exists():
            command = [*self.command("serve"), "--port", "0", "--backend", self._backend]
            sweeper = subprocess.Popen(
                [*command, "--ephemeral"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self.environ,
            )
            assert sweeper.stdout is not None
            with sweeper.stdout:
                sweeper.stdout.readline()
                sweeper.send_signal(signal.SIGTERM)
                assert sweeper.wait(60) == 0


@contextmanager
def service(
    folder: Path, *, backend: str = "local", config: str = "", port: int = 0
) -> Iterator[Service]:
    """A started service; whatever became of it, nothing of it is left at the end."""
    opened = Service(folder, backend=backend, config=config, port=port)
    try:
        opened.start()
        yield opened
    finally:
        opened.end()
