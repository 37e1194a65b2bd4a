"""Bug cases TO: deadlines, quiet commands, cut lines, and a busy machine."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from sandboxd_client import (
    ApiUnreachable,
    AsyncSandbox,
    AsyncSandboxd,
    Ended,
    ExecResult,
    Sandbox,
    Sandboxd,
    SandboxdError,
    Stdout,
)
from tests.contract.cases.times import scaled
from tests.support.cuts import open_network
from tests.support.daemon import RunningDaemon
from tests.support.nginx import as_documented, nginx, own_certificate, usual

WAYS = ("exec", "start", "stream", "shell")


@pytest.fixture
def box(daemon: RunningDaemon) -> Iterator[Sandbox]:
    """A sandbox, held through the SDK as everybody has it."""
    with Sandboxd(url=daemon.url) as client, client.lease("python") as sandbox:
        yield sandbox


def said_by(sandbox: Sandbox, text: str, way: str, *, timeout_s: float) -> tuple[str, int | None]:
    """What a command wrote and exited with, asked for in one of the ways that there are."""
    match way:
        case "exec":
            result = sandbox.exec(text, timeout_s=timeout_s)
        case "start":
            result = sandbox.start(text, timeout_s=timeout_s).wait()
        case "shell":
            with sandbox.shell() as shell:
                result = shell.run(text, timeout_s=timeout_s)
        case _:
            *_, last = sandbox.stream(text, timeout_s=timeout_s)
            assert isinstance(last, Ended)
            kept, _ = sandbox.process(last.result.exec_id).output()
            return kept.decode(), last.result.exit_code
    return result.stdout, result.exit_code


@pytest.mark.requirement("TO-05")
@pytest.mark.timeout(400)
@scaled(1 / 30)
def test_to_05_a_command_is_quiet_for_longer_than_a_proxy_waits(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    for module in ("sandbox", "process", "shell"):  # a round of waiting is the SDK's only time here
        monkeypatch.setattr(f"sandboxd_client._sync.{module}.ROUND_S", 25 * scale)
    text = f"echo x >> ran; sleep {330 * scale:g}; echo ok"
    with (
        nginx(tmp_path, usual(daemon.url, read_timeout_s=60 * scale)) as url,
        Sandboxd(url=url) as client,
        client.lease("python") as sandbox,
        ThreadPoolExecutor(3) as threads,
    ):
        ways = ("exec", "start", "shell")
        ask = partial(said_by, sandbox, text, timeout_s=600 * scale)
        assert list(threads.map(ask, ways)) == [("ok\n", 0)] * len(ways)
        assert sandbox.files.read("ran") == b"x\n" * len(ways)


@pytest.mark.requirement("TO-05")
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_to_05_a_stream_is_quiet_for_longer_than_a_proxy_waits(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """What keeps a stream's line alive is the daemon's word every 15 s, which no test can scale."""
    with (
        nginx(tmp_path, usual(daemon.url, read_timeout_s=60)) as url,
        Sandboxd(url=url) as client,
        client.lease("python") as sandbox,
    ):
        assert said_by(sandbox, "sleep 330; echo ok", "stream", timeout_s=600) == ("ok\n", 0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_a_proxy_as_the_operations_page_has_it_lets_everything_through(
    daemon: RunningDaemon, tmp_path: Path, encrypted: bool
) -> None:
    """Bodies of any size, output as it is written, and WebSockets."""
    data = os.urandom(3 << 20)
    certificate = own_certificate(tmp_path) if encrypted else None
    tls = ssl.create_default_context(cafile=certificate) if encrypted else None
    with (
        nginx(tmp_path, as_documented(daemon.url, certificate=certificate)) as url,
        Sandboxd(url=url.replace("http:", "https:") if encrypted else url, tls=tls) as client,
        client.lease("python") as sandbox,
    ):
        sandbox.files.write("large", data)
        assert sandbox.files.read("large") == data
        process = sandbox.start("read line; echo got $line", tty=(24, 80))
        with process.attach() as terminal:
            terminal.send(b"this\n")
            assert process.wait(timeout_s=10).outcome == "exited"
        pieces = []
        for event in sandbox.stream("echo 1; read line", stdin_open=True, exec_id="live"):
            if isinstance(event, Stdout):
                pieces.append(event.data)  # it is here while the command waits
                sandbox.process("live").write(b"2\n")
        assert pieces == [b"1\n"]


@pytest.mark.requirement("TO-09")
def test_to_09_what_timed_out_is_not_run_again(box: Sandbox) -> None:
    result = box.exec("echo x >> /tmp/n; sleep 60", timeout_s=2)
    assert (result.outcome, result.mask) == ("timeout", False)
    assert box.files.read("/tmp/n") == b"x\n"


@pytest.mark.requirement("TO-09")
@pytest.mark.anyio
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["exec", "stream"])
@pytest.mark.parametrize("back", [True, False], ids=["comes-back", "stays-away"])
async def test_to_09_a_command_whose_line_is_cut_runs_once(
    daemon: RunningDaemon, way: str, back: bool
) -> None:
    """Where the network comes back the command is found by its id; where it does not the caller is
    told that nobody knows how it went.
    """
    async with (
        AsyncSandboxd(url=daemon.url) as near,
        near.lease("python") as sandbox,
        open_network(daemon.url) as network,
        AsyncSandboxd(url=network.url, patience_s=30 if back else 3) as far,
    ):
        ends: list[ExecResult | SandboxdError] = []

        async def run() -> None:
            ends.append(await end_of(far.sandbox(sandbox.id), way))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.sleep(1)
            await network.cut()
            if back:
                await anyio.sleep(0.5)
                network.mend()
        (end,) = ends
        if back:
            assert isinstance(end, ExecResult)
            assert (end.outcome, end.fault, end.mask) == ("timeout", "agent", False)
        else:
            assert isinstance(end, ApiUnreachable)
            assert (end.fault, end.mask) == ("infra", True)
        network.mend()
        assert await sandbox.files.read("n") == b"x\n"
        assert [each.outcome for each in await sandbox.execs()] == ["timeout"]


@pytest.mark.requirement("TO-09")
@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", ["exec", "stream"])
async def test_to_09_a_command_whose_line_falls_silent_runs_once(
    daemon: RunningDaemon, way: str
) -> None:
    """As where something on the way forgets a connection: nobody hears that it is gone."""
    async with (
        AsyncSandboxd(url=daemon.url) as near,
        near.lease("python") as sandbox,
        open_network(daemon.url) as network,
        AsyncSandboxd(url=network.url) as far,
    ):
        ends: list[ExecResult | SandboxdError] = []

        async def run() -> None:
            ends.append(await end_of(far.sandbox(sandbox.id), way))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.sleep(1)
            network.fall_silent()
        (end,) = ends
        assert isinstance(end, ExecResult)
        assert end.outcome == "timeout"
        assert await sandbox.files.read("n") == b"x\n"
        assert len(await sandbox.execs()) == 1


async def end_of(sandbox: AsyncSandbox, way: str) -> ExecResult | SandboxdError:
    """How the command of the row ends, as its caller is told."""
    text = "echo x >> n; sleep 60"
    try:
        if way == "exec":
            return await sandbox.exec(text, timeout_s=2)
        async for event in sandbox.stream(text, timeout_s=2):
            if isinstance(event, Ended):
                return event.result
    except SandboxdError as error:
        return error
    pytest.fail("the stream just stopped")


@pytest.mark.requirement("TO-10")
@pytest.mark.timeout(150)
@scaled(1 / 20)
def test_to_10_a_caller_s_deadline_is_the_only_one(box: Sandbox, scale: float) -> None:
    text = f"sleep {75 * scale:g}; echo ok"
    with ThreadPoolExecutor(len(WAYS)) as threads:
        ask = partial(said_by, box, text, timeout_s=120 * scale)
        assert list(threads.map(ask, WAYS)) == [("ok\n", 0)] * len(WAYS)


@pytest.mark.requirement("TO-13")
@pytest.mark.serial
@pytest.mark.timeout(200)
@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_to_13_under_load_no_command_times_out(daemon: RunningDaemon, count: int) -> None:
    with (
        Sandboxd(url=daemon.url) as client,
        client.lease("python") as sandbox,
        busy_processors(4),
        ThreadPoolExecutor(count) as threads,
    ):
        ends = list(threads.map(lambda _: sandbox.exec("true", timeout_s=60), range(count)))
    assert [(end.outcome, end.exit_code) for end in ends] == [("exited", 0)] * count


@contextmanager
def busy_processors(times: int) -> Iterator[None]:
    """Every processor of this machine taken so many times over."""
    burn = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(burn) for _ in range(times * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
