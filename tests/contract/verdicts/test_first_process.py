"""A sandbox's first process: shot at from inside, killed and stopped from outside, posed as."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sandboxd_client import Sandbox, SandboxLost, Timeout
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.contract.verdicts.kinds import (
    DIED_BY_ITSELF,
    DIED_FOR_UNKNOWN,
    assert_ended,
    problem_verdict,
    refused,
    verdict,
)

pytestmark = pytest.mark.timeout(240)

_ALL_SIGNALS = "n=1; while [ $n -le 64 ]; do kill -$n 1; n=$((n+1)); done 2>/dev/null; true"
_POSE = """
import os, socket, time
os.unlink("/run/guest/s.sock")
line = socket.socket(socket.AF_UNIX); line.bind("/run/guest/s.sock"); line.listen()
open("/tmp/posing", "w").close(); time.sleep(300)
"""


def test_no_signal_from_inside_ends_it(box: Sandbox) -> None:
    box.exec(_ALL_SIGNALS)
    assert box.exec("echo lives").stdout == "lives\n"


def test_killed_from_outside_it_is_nobodys_doing_as_far_as_anybody_knows(
    shared_house: House, box: Sandbox
) -> None:
    with ThreadPoolExecutor(1) as threads:
        caller = threads.submit(refused, lambda: box.exec("sleep 300"))
        eventually(lambda: bool(box.execs()), within_s=10, what="it runs")
        shared_house.kill(shared_house.box_of(box.id))
        error = caller.result(30)
    assert isinstance(error, SandboxLost)
    assert problem_verdict(error) == ("sandbox_lost", "unknown", True, False)
    evidence = assert_ended(box, DIED_FOR_UNKNOWN)
    assert evidence["exit_code"] == 137
    assert evidence["oom_kills"] in {0, None}


def test_whoever_poses_as_the_guest_is_found_out_and_scored(box: Sandbox) -> None:
    box.start(["python3", "-c", _POSE])
    eventually(lambda: _posed(box), within_s=30, what="somebody else listens")
    # Lines that were open before are the guest's own still: more calls at once need new ones.
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(box.exec, "sleep 1") for _ in range(8)]
        errors = [answer.exception(30) for answer in answers]
    assert any(isinstance(error, SandboxLost) for error in errors)
    assert all(error.fault == "agent" for error in errors if isinstance(error, SandboxLost))
    evidence = assert_ended(box, DIED_BY_ITSELF)
    assert evidence["peer_pid"] != evidence["guest_pid"]


def _posed(box: Sandbox) -> bool:
    try:
        return box.exec("test -e /tmp/posing").ok
    except SandboxLost:
        return True


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does not get its turn."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_was_under_way_goes_on_after_a_stop(shared_house: House, box: Sandbox) -> None:
    process = box.start("echo before; sleep 1; echo after; exit 5")
    with stopped(shared_house.first_process(shared_house.box_of(box.id))):
        time.sleep(2)  # longer than the command takes
    result = process.wait()
    assert verdict(result) == ("exited", None, None, False, 5)
    assert result.stdout == "before\nafter\n"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exec", "stream", "file"])
def test_nobody_waits_for_a_guest_that_is_stopped_and_it_is_ours(
    shared_house: House, box: Sandbox, way: str
) -> None:
    """A command without a deadline: 60 s of silence, then 30 s for the guest to say a word."""
    calls: dict[str, Callable[[], object]] = {
        "exec": lambda: box.exec("sleep 300"),
        "stream": lambda: list(box.stream("sleep 300")),
        "file": lambda: box.files.read("/etc/hostname"),
    }
    with stopped(shared_house.first_process(shared_house.box_of(box.id))):
        began = time.monotonic()
        error = refused(calls[way])
        took_s = time.monotonic() - began
    assert isinstance(error, Timeout)
    assert problem_verdict(error) == ("timeout", "infra", True, False)
    assert took_s < 120
    assert box.info().end is None
    assert box.exec("echo goes on").stdout == "goes on\n"
