"""SIGTERM at any moment: quick, nothing lost, and whoever waits finds its work again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from sandboxd_client import AsyncSandbox, AsyncSandboxd, Ended, ExecResult, Sandboxd, Stdout
from tests.faults.account import free_port
from tests.support.service import Service, service

pytestmark = [pytest.mark.anyio, pytest.mark.serial, pytest.mark.timeout(90)]

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 1, max = 6}
"""


class Waiting:
    """Callers that all wait for something while the daemon goes and comes back."""

    def __init__(self, client: AsyncSandboxd, held: list[AsyncSandbox]) -> None:
        self.client = client
        self.held = held
        self.results: list[ExecResult] = []
        self.streamed: list[bytes] = []
        self.leased: set[str] = set()

    async def run(self, number: int) -> None:
        text = f"sleep 3; echo {number} >> /workspace/ran; exit {number}"
        self.results.append(await self.held[number % 5].exec(text))

    async def stream(self, number: int) -> None:
        text = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"
        seen = [event async for event in self.held[number % 5].stream(text)]
        assert sum(isinstance(event, Ended) for event in seen) == 1
        self.streamed.append(b"".join(event.data for event in seen if isinstance(event, Stdout)))

    async def lease(self, _: int) -> None:
        async with self.client.lease("python", wait_timeout_s=60) as sandbox:
            self.leased.add(sandbox.id)

    async def all_told(self) -> None:
        with anyio.fail_after(40):
            while len(self.results) < 20 or len(self.streamed) < 5:  # noqa: ASYNC110
                await anyio.sleep(0.05)


async def test_whoever_waits_finds_its_work_again_after_a_restart(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG, port=free_port()) as daemon:
        async with AsyncSandboxd(url=daemon.url) as client:
            held = [await client.lease("python") for _ in range(5)]
            crowd = Waiting(client, held)
            async with anyio.create_task_group() as tasks:
                for act, count in ((crowd.run, 20), (crowd.stream, 5), (crowd.lease, 6)):
                    for number in range(count):
                        tasks.start_soon(act, number)
                await anyio.sleep(0.7)  # into the middle of all that: any moment is as good
                began = time.monotonic()
                assert await to_thread.run_sync(daemon.stop) == 0
                assert time.monotonic() - began < 5
                await to_thread.run_sync(daemon.start)
                await crowd.all_told()
                for sandbox in held[:2]:
                    await sandbox.release()
            assert sorted(result.exit_code or 0 for result in crowd.results) == list(range(20))
            assert set(crowd.streamed) == {b"1\n2\n3\n4\n5\n6\n"}
            assert len(crowd.leased) == 6
            for number, sandbox in enumerate(held[2:], start=2):
                ran = (await sandbox.files.read("/workspace/ran")).decode().split()
                assert sorted(map(int, ran)) == [number + 5 * i for i in range(4)]
                await sandbox.release()


def test_asked_twice_it_does_not_wait_for_calls(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        with Sandboxd(url=daemon.url) as client:
            client.lease("python").start("sleep 60")
        os.kill(daemon.pid, signal.SIGTERM)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("after_s", [0.4, 0.7])
@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_start_that_is_cut_short_leaves_nothing_that_the_next_does_not_find(
    tmp_path: Path, after_s: float, ephemeral: bool
) -> None:
    opened = Service(tmp_path, config=CONFIG)
    try:
        command = [*opened.command("serve"), "--port", "0", "--backend", "local"]
        with opened.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *["--ephemeral"] * ephemeral],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=opened.environ,
            )
        try:
            time.sleep(after_s)  # the moment is what is tried
            process.send_signal(signal.SIGTERM)
            code = process.wait(15)
        finally:
            process.kill()
            process.wait()
        # Before Python has set up anything the signal itself ends it.
        assert code in {0, -signal.SIGTERM}, opened.log.read_text()
        assert "Traceback" not in opened.log.read_text()
        places = opened.state / "boxes"
        if ephemeral and code == 0:
            assert not places.exists() or not list(places.iterdir())
        opened.start()
        with Sandboxd(url=opened.url) as client:
            sandbox = client.lease("python")
            assert sandbox.exec("echo ok").stdout == "ok\n"
            sandbox.release()
    finally:
        opened.end()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_hundred_leases_are_back_within_seconds(tmp_path: Path) -> None:
    config = CONFIG.replace("max = 6", "max = 220, starting = 8")
    with service(tmp_path, config=config) as daemon:
        with Sandboxd(url=daemon.url) as client:
            held = [client.lease("python").id for _ in range(200)]
        daemon.kill()
        began = time.monotonic()
        daemon.start()
        took = time.monotonic() - began
        print(f"200 leases were back in {took:.2f} s")
        assert took < 3
        with Sandboxd(url=daemon.url) as client:
            assert client.sandbox(held[0]).exec("echo ok").stdout == "ok\n"
            assert len(client.sandboxes()) == 200
