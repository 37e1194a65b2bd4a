"""An ephemeral daemon as a child process, so that daemon and SDK use a core each."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL  # noqa: TID251 - a constant of anyio.open_process
from typing import IO

import anyio
from anyio.abc import Process

from sandboxd.cli.ephemeral import ephemeral_place

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_LOG_BYTES = 4096
_ANNOUNCEMENT = b"listening on "


class DaemonFailed(Exception):
    """The daemon did not start, or did not end well. Its last words are the message."""


@dataclass(frozen=True, slots=True)
class EmbeddedDaemon:
    """A running daemon: where it listens, its process id, where its state lies, and its log.

    installation: the mark on everything that is its own.
    """

    url: str
    pid: int
    state_dir: Path
    backend: str
    installation: str
    _log: IO[bytes]

    def last_words(self) -> str:
        """The end of its log."""
        return _tail(self._log)


@asynccontextmanager
async def embedded_daemon(
    config: str, *, backend: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[EmbeddedDaemon]:
    """Start a daemon with this configuration text, stop it at the end.

    env: variables beside our own.

    Raises DaemonFailed if it does not start, or leaves with another status than 0. It ends every
    sandbox of its own when it stops, also where the body raised or was cancelled, and when this
    process dies.
    """
    with ephemeral_place() as place, tempfile.TemporaryFile() as log:
        state_dir, path = place / "state", place / "sandboxd.toml"
        path.write_text(config)
        process = await anyio.open_process(
            [
                *(sys.executable, "-m", "sandboxd.demo.daemon_child", str(os.getpid()), str(place)),
                *("--config", str(path), "--port", "0"),
                *("--backend", backend, "--state-dir", str(state_dir)),
            ],
            stdin=DEVNULL,
            stderr=log,
            env=_environment() | dict(env or {}) | {"SANDBOXD_RUN_DIR": str(place / "run")},
            start_new_session=True,  # Ctrl-C is ours to handle, then we stop it
        )
        try:
            url = await _address(process, log)
            installation = (state_dir / "installation").read_text()
            yield EmbeddedDaemon(url, process.pid, state_dir, backend, installation, log)
        finally:
            await _stop(process)
        if process.returncode != 0:
            raise DaemonFailed(f"the daemon left with status {process.returncode}: {_tail(log)}")


def _environment() -> dict[str, str]:
    """Ours, without what would lead the demo's daemon elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDBOXD_")}


async def _address(process: Process, log: IO[bytes]) -> str:
    try:
        with anyio.fail_after(START_TIMEOUT_S):
            line = await _first_line(process)
    except TimeoutError:
        raise DaemonFailed(f"no daemon within {START_TIMEOUT_S:g} s: {_tail(log)}") from None
    if not line.startswith(_ANNOUNCEMENT):
        await process.wait()
        raise DaemonFailed(_tail(log) or f"the daemon left with status {process.returncode}")
    return line.removeprefix(_ANNOUNCEMENT).decode().strip()


async def _first_line(process: Process) -> bytes:
    line = b""
    if process.stdout is not None:
        with suppress(anyio.EndOfStream):
            while b"\n" not in line:
                line += await process.stdout.receive()
    return line.partition(b"\n")[0]


async def _stop(process: Process) -> None:
    """SIGTERM, which an ephemeral daemon answers by cleaning up; SIGKILL if it never ends."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return "\n".join(line.removeprefix("sandboxd: ") for line in lines[-5:])
