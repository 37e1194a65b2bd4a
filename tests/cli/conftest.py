"""A daemon of its own for the tests of the client verbs, over the fake backend."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import anyio
import pytest
from anyio.abc import Process

from sandboxd.demo.embedded import EmbeddedDaemon, embedded_daemon
from sandboxd_client import AsyncSandboxd
from tests.support.daemon import run_daemon

ROOT = Path(__file__).parent.parent.parent
CONFIG = '[templates.python]\nimage = "host"\npool = {ready = 1, max = 8}\n'


@dataclass(frozen=True, slots=True)
class Done:
    """How a call of the program went."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of `sandboxd` as processes, with the daemon that they talk to."""

    daemon: EmbeddedDaemon

    async def run(self, *argv: str, stdin: bytes = b"", **env: str) -> Done:
        """Run it to its end."""
        with anyio.fail_after(15):
            done = await anyio.run_process(
                self._argv(*argv), input=stdin, check=False, env=self._env(**env)
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    @asynccontextmanager
    async def running(self, *argv: str, stdout: int = PIPE) -> AsyncIterator[Process]:
        """Start it; killed at the end if it still runs."""
        process = await anyio.open_process(self._argv(*argv), env=self._env(), stdout=stdout)
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.aclose()

    @staticmethod
    def _argv(*argv: str) -> list[str]:
        return [sys.executable, "-m", "sandboxd", *argv]

    def _env(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        return {**os.environ, "PYTHONPATH": path, "SANDBOXD_API_URL": self.daemon.url, **more}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Processes are real, so the loop is too; a module's tests share it and the daemon."""
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with real sandboxes, for a module's tests."""
    with run_daemon(tmp_path_factory.mktemp("real"), backend="local", config=CONFIG) as running:
        yield running.url


@pytest.fixture(scope="module")
async def daemon() -> AsyncIterator[EmbeddedDaemon]:
    """A daemon over the fake backend."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    async with embedded_daemon(CONFIG, backend="fake", env={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture
async def sandboxd(daemon: EmbeddedDaemon) -> AsyncIterator[Program]:
    """The program, with a daemon that has no leases before and after."""
    yield Program(daemon)
    async with AsyncSandboxd(url=daemon.url) as client:
        for info in await client.sandboxes():
            await client.sandbox(info.id).release(wait_s=5)
