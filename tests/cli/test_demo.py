"""The demo as a person runs it, on the local backend where that works."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from sandboxd.cli.doctor import local_checks
from sandboxd.settings import load_settings
from tests.cli.conftest import ROOT

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def local_works(tmp_path: Path) -> None:
    """Skips where this machine cannot run the local backend, with the reason."""
    settings = load_settings(None, env={}, overrides={"state_dir": str(tmp_path / "state")})
    for check in local_checks(settings):
        if check.is_fatal and not check.ok:
            pytest.skip(f"{check.name}: {check.detail}")


@asynccontextmanager
async def demo(*argv: str, **variables: str) -> AsyncIterator[Process]:
    """The demo as a process; killed at the end if it still runs."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    env = {**os.environ, "PYTHONPATH": path, **variables}
    command = [sys.executable, "-m", "sandboxd", "demo", *argv]
    process = await anyio.open_process(command, env=env)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


def daemon_of(demo: Process) -> int:
    """The process id of the demo's daemon."""
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    for child in children:
        if b"sandboxd.demo.daemon_child" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise LookupError(children)


def place_of(daemon: int) -> Path:
    """The folder of its state."""
    words = Path(f"/proc/{daemon}/cmdline").read_bytes().split(b"\0")
    return Path(words[words.index(b"--state-dir") + 1].decode()).parent


async def ended(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    pidfd = os.pidfd_open(pid)
    try:
        with anyio.fail_after(30):
            await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


@pytest.mark.usefixtures("local_works")
@pytest.mark.parametrize("way", [[], ["--kernel"]], ids=["commands", "cells"])
async def test_the_demo_judges_every_program_rightly_and_leaves_nothing(way: list[str]) -> None:
    async with demo("--limit", "4", *way) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        with anyio.fail_after(90):
            out = b"".join([chunk async for chunk in process.stdout]).decode()
            err = b"".join([chunk async for chunk in process.stderr]).decode()
            code = await process.wait()
    assert (code, err) == (0, "")
    assert "backend: local" in out
    assert ("cells of a kernel" in out, "cells p50" in out) == (bool(way), bool(way))
    assert "reference solutions: 4 of 4 pass (must be 4), faults of ours: 0" in out
    assert "empty bodies: 0 of 4 pass (must be 0), faults of ours: 0" in out
    assert "sandboxes left over: 0" in out
    assert "sandboxd serve" in out


@pytest.mark.usefixtures("local_works")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_demo_that_is_interrupted_takes_its_daemon_along(number: signal.Signals) -> None:
    async with demo("--limit", "100") as process:
        assert process.stdout is not None
        with anyio.fail_after(60):
            said = b""
            while b" 10/100" not in said:
                said += await process.stdout.receive()
            place = place_of(daemon_of(process))
            assert place.is_dir()
            process.send_signal(number)
            assert await process.wait() == 130
    assert not place.exists()


@pytest.mark.usefixtures("local_works")
async def test_the_daemon_of_a_killed_demo_ends_its_sandboxes() -> None:
    async with demo("--limit", "100") as process:
        assert process.stdout is not None
        with anyio.fail_after(60):
            said = b""
            while b" 10/100" not in said:
                said += await process.stdout.receive()
            daemon = daemon_of(process)
            place = place_of(daemon)
            process.kill()
            await process.wait()
            await ended(daemon)
    assert not place.exists()


async def test_a_backend_that_cannot_run_the_demo_is_a_line(tmp_path: Path) -> None:
    for backend in ("fake", "docker"):
        nowhere = f"unix://{tmp_path}/no.sock"
        async with demo("--backend", backend, DOCKER_HOST=nowhere) as process:
            assert process.stderr is not None
            with anyio.fail_after(30):
                err = b"".join([chunk async for chunk in process.stderr]).decode()
                assert await process.wait() == 1
        assert err.startswith("sandboxd: ")
        assert "Traceback" not in err
