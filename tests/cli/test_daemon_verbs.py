"""`serve`, `sweep` and `doctor` as processes, with state of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from sandboxd.cli import main
from sandboxd.cli.doctor import local_checks
from sandboxd.cli.ephemeral import ephemeral_place
from sandboxd.settings import load_settings
from sandboxd_client import AsyncSandboxd
from tests.cli.conftest import ROOT

pytestmark = pytest.mark.timeout(60)

CONFIG = '[templates.python]\nimage = "host"\npool = {ready = 1, max = 4}\n'


@pytest.fixture
def places() -> Iterator[list[str]]:
    """Flags that keep a daemon's state and sockets in a folder whose name is short enough."""
    with ephemeral_place() as place:
        (place / "c.toml").write_text(f'{CONFIG}[backend]\nrun_dir = "{place}/r"\n')
        yield ["--config", str(place / "c.toml"), "--state-dir", str(place / "s")]


@pytest.fixture
def local_works(tmp_path: Path) -> None:
    """Skips where this machine cannot run the local backend, with the reason."""
    state = {"state_dir": str(tmp_path / "probe")}
    for check in local_checks(load_settings(None, env={}, overrides=state)):
        if check.is_fatal and not check.ok:
            pytest.skip(f"{check.name}: {check.detail}")


@asynccontextmanager
async def serving(*argv: str) -> AsyncIterator[tuple[Process, str]]:
    """A daemon as a process, and its URL; ended by SIGTERM if it still runs."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    command = [sys.executable, "-m", "sandboxd", "serve", "--port", "0", *argv]
    process = await anyio.open_process(command, env=env)
    try:
        assert process.stdout is not None
        with anyio.fail_after(20):
            line = (await process.stdout.receive()).decode()
        assert line.startswith("listening on http://127.0.0.1:")
        yield process, line.removeprefix("listening on ").strip()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(20, shield=True):
            if process.returncode is None:
                process.terminate()
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()


def store_of(daemon: int) -> Path:
    """The lease store that a daemon has open."""
    opened = set()
    for link in Path(f"/proc/{daemon}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed while we looked
            opened.add(link.readlink())
    (store,) = {path for path in opened if path.name == "leases.db"}
    return store


async def refilled(client: AsyncSandboxd) -> None:
    """Wait until the pool has its stock again and makes nothing."""
    with anyio.fail_after(20):
        while True:
            (pool,) = await client.pools()
            if pool.ready and not pool.making:
                return
            await anyio.sleep(0.02)


async def test_an_ephemeral_daemon_takes_its_folder_along() -> None:
    async with serving("--ephemeral", "--backend", "fake") as (process, _):
        place = store_of(process.pid).parent.parent
        assert place.name.startswith("sandboxd-")
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            assert await process.wait() == 0
    assert not place.exists()


async def test_a_second_daemon_on_the_same_state_is_refused_in_a_line(places: list[str]) -> None:
    async with serving(*places, "--backend", "fake"):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
        command = [sys.executable, "-m", "sandboxd", "serve", "--port", "0", "--backend", "fake"]
        with anyio.fail_after(20):
            done = await anyio.run_process([*command, *places], check=False, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith(b"sandboxd: another daemon")
    assert b"Traceback" not in done.stderr


def test_sweep_of_no_state_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--state-dir", str(tmp_path / "none")]) == 1
    assert "there is no such state folder" in capsys.readouterr().err


async def test_sweep_asks_the_daemon_that_holds_the_state_wherever_it_listens(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["sweep", "--backend", "fake", *places]
    async with (
        serving(*places, "--backend", "fake") as (_, url),
        AsyncSandboxd(url=url) as client,
    ):
        leased = await client.lease("python")
        monkeypatch.setenv("SANDBOXD_API_URL", "http://127.0.0.1:9")  # of another daemon
        assert await anyio.to_thread.run_sync(main, argv) == 0
        assert (await leased.info()).state == "leased"
        assert await anyio.to_thread.run_sync(main, [*argv, "--all"]) == 0
        info = await leased.info()
        assert info.end is not None
        assert info.end.reason == "shutdown"


@pytest.mark.usefixtures("local_works")
async def test_sweep_all_removes_what_a_killed_daemon_left(
    places: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(*places) as (process, url):
        async with AsyncSandboxd(url=url) as client:
            leased = await client.lease("python")
            await refilled(client)
        process.kill()
        await process.wait()
    boxes = Path(places[3]) / "boxes"
    assert list(boxes.iterdir())

    async def sweep(*flags: str) -> dict[str, list[dict[str, str]]]:
        capfd.readouterr()
        argv = ["sweep", *places, "-o", "json", *flags]
        assert await anyio.to_thread.run_sync(main, argv) == 0
        told: dict[str, list[dict[str, str]]] = json.loads(capfd.readouterr().out)
        return told

    # A lease and warm stock outlive their daemon: without --all nothing is orphaned.
    assert (await sweep())["boxes"] == []
    told = await sweep("--all", "--dry-run")
    assert any(leased.id in box["why"] for box in told["boxes"])
    assert list(boxes.iterdir())
    await sweep("--all")
    assert list(boxes.iterdir()) == []

    async with serving(*places) as (_, url), AsyncSandboxd(url=url) as client:
        info = await client.sandbox(leased.id).info()
        assert info.end is not None
        assert info.end.reason == "shutdown"
    await sweep("--all")  # the second daemon's warm stock


def test_doctor_says_whether_sandboxes_can_be_made(
    places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["doctor", *places, "-o", "json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (0 if told["ok"] else 1)
    assert {"python", "state folder"} <= {check["name"] for check in told["checks"]}
    assert all(check["mend"] for check in told["checks"] if not check["ok"])


def test_doctor_names_a_state_folder_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["doctor", "--backend", "fake", "--state-dir", str(tmp_path / "file" / "s")]
    assert main(argv) == 1
    assert "NO  state folder" in capsys.readouterr().out
