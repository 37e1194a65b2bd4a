"""Trainers and the daemon killed in the middle: a dead trainer's sandboxes are gone within one ttl
of whichever daemon is there, a live one keeps its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxd_client import Sandboxd
from tests.faults.account import free_port
from tests.support.service import Service, service

pytestmark = [pytest.mark.serial, pytest.mark.timeout(120)]

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 2, max = 10}
"""
_TTL_S = 4.0
_SLACK_S = 6.0  # to notice, end, record and remove, on a machine that does other things too

TRAINER = """
import sys, time
from sandboxd_client import Sandboxd
url, run_id, ttl_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
with Sandboxd(url) as client, client.run(run_id, ttl_s=ttl_s):
    for _ in range(2):
        print(client.lease("python", run_id=run_id).id, flush=True)
    sys.stdin.read()
"""


class Trainer:
    """A process that holds two sandboxes of its run for as long as it lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.sandboxes = [process.stdout.readline().strip() for _ in range(2)]

    def kill(self) -> None:
        """SIGKILL: no `finally`, no goodbye."""
        self.process.kill()
        self.process.wait(10)

    def finish(self) -> None:
        """Let it leave its run."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@contextmanager
def trainer(daemon: Service, run_id: str) -> Iterator[Trainer]:
    """One that is over at the end, however."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, daemon.url, run_id, str(_TTL_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=daemon.environ,
    )
    try:
        yield Trainer(process)
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Service]:
    """A daemon that comes back at the same address."""
    with service(tmp_path, config=CONFIG, port=free_port()) as running:
        yield running


def reasons(client: Sandboxd, held: Trainer) -> list[str | None]:
    ends = [client.sandbox(sandbox_id).info().end for sandbox_id in held.sandboxes]
    return [None if end is None else end.reason for end in ends]


def eventually(check: Callable[[], bool], *, within_s: float, what: str) -> float:
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began


def boxes(daemon: Service) -> int:
    return sum(1 for _ in (daemon.state / "boxes").iterdir())


def test_a_killed_trainer_s_sandboxes_are_gone_within_a_ttl(daemon: Service) -> None:
    with Sandboxd(daemon.url) as client, trainer(daemon, "dead") as dead:
        with trainer(daemon, "alive") as alive:
            dead.kill()
            eventually(
                lambda: reasons(client, dead) == ["run_lost"] * 2,
                within_s=_TTL_S + _SLACK_S,
                what="both ended",
            )
            assert reasons(client, alive) == [None, None]
            alive.finish()
            assert reasons(client, alive) == ["released"] * 2
        eventually(lambda: boxes(daemon) == 2, within_s=20, what="only the stock is left")


def test_across_a_restart_the_dead_one_s_are_gone_and_the_live_one_s_are_not(
    daemon: Service,
) -> None:
    with (
        Sandboxd(daemon.url) as client,
        trainer(daemon, "dead") as dead,
        trainer(daemon, "alive") as alive,
    ):
        daemon.kill()
        dead.kill()
        time.sleep(_TTL_S + 1)  # our own downtime, longer than their ttl, is no fault of theirs
        daemon.start()
        assert reasons(client, alive) == [None, None]
        assert reasons(client, dead) == [None, None]
        eventually(
            lambda: reasons(client, dead) == ["run_lost"] * 2,
            within_s=_TTL_S + _SLACK_S,
            what="both ended",
        )
        time.sleep(_TTL_S)
        assert reasons(client, alive) == [None, None]
        for sandbox_id in alive.sandboxes:
            assert client.sandbox(sandbox_id).exec("echo ok").stdout == "ok\n"
        daemon.kill()
        daemon.start()
        assert [run.run_id for run in client.runs(state="lost")] == ["dead"]
        assert reasons(client, dead) == ["run_lost"] * 2
        alive.finish()
        assert reasons(client, alive) == ["released"] * 2
        eventually(lambda: boxes(daemon) == 2, within_s=20, what="only the stock is left")
