"""Limits: what runs wild inside ends there, with a name; the neighbours and the machine work on.

Every load stands in limits that were read back first, and ends with its sandbox's own short life.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.contract.cases.houses import House
from tests.contract.speaker import Speaker, eventually
from tests.support.limits import READ_LIMITS, assert_held

pytestmark = pytest.mark.timeout(180)

_MB = 1 << 20
_LIFE_S = 120  # the watchdog: whatever a test forgets is over by then
_TYPED_S = 15.0
_NEIGHBOUR_S = 2.0
_DISK_MB = 24
_DISK_S = 60.0  # two rounds of measuring, on a busy machine
_READ_MEMORY = (
    "cd /sys/fs/cgroup; cat memory/memory.usage_in_bytes 2>/dev/null || cat memory.current"
)
_BOMB = ":(){ :|:& };:"
_HOG = 'python3 -c "[bytearray(1<<24) for _ in range(10000)]"'
_MEMORY_STORM = f"for n in 1 2 3 4 5 6 7 8; do {_HOG} & done; wait"
_EMPTY_FILES = """
import os, time
os.mkdir("/many"); os.chdir("/many")
for number in range(9000): os.close(os.open(str(number), os.O_CREAT))
time.sleep(60)
"""
# What each writes is bounded, for the machine's sake; it is far over what the sandbox may have.
_FILL = "dd if=/dev/zero of={place} bs=1M count=80; sleep 60"
_FILLERS: dict[str, str | list[str]] = {
    "root": _FILL.format(place="/x"),
    "temporary": _FILL.format(place="/tmp/x"),
    "kept temporary": _FILL.format(place="/var/tmp/x"),
    "home": _FILL.format(place="$HOME/x"),
    "workspace": _FILL.format(place="x"),
    "allocated": "fallocate -l 80M /x; sleep 60",
    "without a name": "exec 3>/x; rm /x; dd if=/dev/zero bs=1M count=80 >&3; sleep 60",
    "many and empty": ["python3", "-c", _EMPTY_FILES],
}
_ALL_TERMINALS = """
import os, time
held = []
try:
    while True: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError: print("all", flush=True)
time.sleep(60)
"""
_ORPHANS = "i=0; while [ $i -lt 2000 ]; do (sleep 0.05 &); i=$((i+1)); done"
_DOUBLE_FORKS = "i=0; while [ $i -lt 500 ]; do (setsid sh -c 'sleep 0.05 &' &); i=$((i+1)); done"
_ZOMBIES = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"


@contextmanager
def limited(http: httpx.Client, **resources: int) -> Iterator[Speaker]:
    """A sandbox that may be attacked from inside: its limits hold."""
    asked = {"memory_mb": 256, "pids": 96, **resources}
    order = {"template": "python", "resources": asked, "timeout_s": _LIFE_S}
    body = http.post("/v1/sandboxes", json=order).json()
    made = Speaker(http, f"/v1/sandboxes/{body['id']}")
    try:
        read = made.exec(READ_LIMITS)["stdout"]
        assert_held(read, pids=asked["pids"], memory_mb=asked["memory_mb"])
        yield made
    finally:
        assert http.delete(made.path, params={"wait_s": 60}, timeout=90).status_code == 200


@pytest.fixture
def victim(http: httpx.Client, can: dict[str, Any]) -> Iterator[Speaker]:
    """One whose limits the kernel holds."""
    if {can["limits"]["memory"], can["limits"]["pids"]} != {"enforced"}:
        pytest.skip(f"nothing holds a storm here: {can['limits']}")
    with limited(http) as made:
        yield made


def answers(sandbox: Speaker, *, within_s: float, rounds: int = 10) -> None:
    """Short commands end in time, again and again."""
    for _ in range(rounds):
        began = time.monotonic()
        assert sandbox.exec("true")["exit_code"] == 0
        assert time.monotonic() - began < within_s


def usable_or_typed_dead(sandbox: Speaker) -> None:
    """Soon a command runs again, or the sandbox ended as its agent's doing."""

    def settled() -> bool:
        response = sandbox.post("/execs", {"cmd": "true", "timeout_s": 5})
        if response.status_code == 200:
            return bool(response.json()["exit_code"] == 0)
        end = sandbox.get().json()["end"]
        assert (end["fault"], end["mask"]) == ("agent", False), end
        return True

    eventually(settled, within_s=_TYPED_S, what="a command runs, or the end has a name")


@pytest.mark.requirement("RL-01")
def test_rl_01_a_fork_storm_is_told_as_that_and_the_neighbour_works_on(
    victim: Speaker, sandbox: Speaker
) -> None:
    storm = victim.start(["bash", "-c", f"{_BOMB}; sleep 100"], timeout_s=100)

    def is_told() -> bool:
        seen = victim.exec("true", timeout_s=5)
        if not seen["error"] or seen["error"]["reason"] != "pids":
            return False
        assert (seen["fault"], seen["mask"]) == ("agent", False), seen
        return True

    eventually(is_told, within_s=_TYPED_S, what="the limit of processes is told by name")
    answers(sandbox, within_s=_NEIGHBOUR_S)
    victim.post(f"/execs/{storm}/signal", {"signal": "KILL"})
    usable_or_typed_dead(victim)


@pytest.mark.requirement("RL-01")
def test_rl_01_a_fork_storm_that_its_command_left_behind_ends_with_the_sandbox(
    victim: Speaker, sandbox: Speaker
) -> None:
    # One fork of its own, so that nothing it started can take its place in the limit first.
    assert victim.exec(["bash", "-c", f"({_BOMB}) & exit 0"])["exit_code"] == 0
    answers(sandbox, within_s=_NEIGHBOUR_S)
    began = time.monotonic()
    told = victim.http.delete(victim.path, params={"wait_s": 60}, timeout=90).json()
    assert (told["state"], told["end"]["reason"]) == ("ended", "released")
    assert time.monotonic() - began < _TYPED_S
    answers(sandbox, within_s=_NEIGHBOUR_S)


@pytest.mark.requirement("RL-01")
def test_rl_01_a_memory_storm_is_told_as_that_and_the_neighbour_works_on(
    victim: Speaker, sandbox: Speaker
) -> None:
    storm = victim.start(_MEMORY_STORM, timeout_s=100)
    answers(sandbox, within_s=_NEIGHBOUR_S)
    response = victim.get(f"/execs/{storm}", wait_s=_TYPED_S)
    if response.status_code == 200:
        seen = response.json()
        assert seen["outcome"] == "oom" or seen["oom_kills"] > 0, seen
        assert not seen["mask"]
    usable_or_typed_dead(victim)
    answers(sandbox, within_s=_NEIGHBOUR_S)


@pytest.mark.requirement("RL-04")
def test_rl_04_whoever_fills_the_disk_ends_by_it_and_all_of_it_is_freed(
    open_house: Callable[..., AbstractContextManager[House]],
) -> None:
    with (
        open_house(pool="ready = 0, max = 12") as house,
        httpx.Client(base_url=house.url, timeout=60) as http,
        limited(http) as neighbour,
    ):
        kept = house.boxes()
        with ExitStack() as stack:
            full = {name: stack.enter_context(limited(http, disk_mb=_DISK_MB)) for name in _FILLERS}
            for name, filler in _FILLERS.items():
                full[name].start(filler, timeout_s=100)
            for name, sandbox in full.items():
                ends_by_disk(name, sandbox)
            written = neighbour.exec("head -c 9000000 /dev/zero > /tmp/own && stat -c %s /tmp/own")
            assert written["stdout"] == "9000000\n"
        eventually(lambda: house.boxes() == kept, within_s=60, what="all that was written is gone")


def ends_by_disk(name: str, sandbox: Speaker) -> None:
    """It does, soon, and says so with the reading."""

    def ended() -> bool:
        return bool(sandbox.get().json()["state"] == "ended")

    eventually(ended, within_s=_DISK_S, what=f"{name}: the end")
    end = sandbox.get().json()["end"]
    assert (end["reason"], end["fault"], end["mask"]) == ("disk", "agent", False), (name, end)


@pytest.mark.requirement("RL-04")
def test_rl_04_what_fills_shared_memory_is_no_disk_and_is_told_no_space(
    victim: Speaker, sandbox: Speaker
) -> None:
    seen = victim.exec("dd if=/dev/zero of=/dev/shm/x bs=1M count=400")
    assert "No space left on device" in seen["stderr"] or seen["oom_kills"] > 0, seen
    victim.exec("rm -f /dev/shm/x")
    answers(victim, within_s=_NEIGHBOUR_S, rounds=1)
    answers(sandbox, within_s=_NEIGHBOUR_S, rounds=1)


def best_of(sandbox: Speaker, rounds: int) -> float:
    """The least time that a fixed piece of work takes, by its own clock: others are busy too."""
    work = "import time; t = time.time(); sum(range(2_000_000)); print(time.time() - t)"
    runs = (sandbox.exec(["python3", "-c", work])["stdout"] for _ in range(rounds))
    return min(map(float, runs))


@pytest.mark.serial
@pytest.mark.requirement("RL-05")
def test_rl_05_a_sandbox_that_uses_up_its_processor_still_answers(
    open_house: Callable[..., AbstractContextManager[House]],
) -> None:
    # The two alone: with more sandboxes than processors some have to share one.
    with (
        open_house(pool="ready = 2, max = 4") as house,
        httpx.Client(base_url=house.url, timeout=60) as http,
        limited(http) as victim,
        limited(http) as neighbour,
    ):
        alone = best_of(neighbour, 8)
        busy = "yes >/dev/null & " * (4 * (os.cpu_count() or 1))
        victim.start(f"{busy} wait", timeout_s=100)
        http.put(f"{victim.path}/files", params={"path": "note"}, content=b"here")
        for _ in range(5):
            answers(victim, within_s=5, rounds=1)
            began = time.monotonic()
            assert victim.get("/files", path="note").content == b"here"
            assert time.monotonic() - began < 5
            began = time.monotonic()
            assert victim.get().json()["state"] == "leased"
            assert time.monotonic() - began < 1
        limits = http.get("/v1/version").json()["limits"]
        if limits.get("cpu") == "enforced" and (os.cpu_count() or 1) > 1:
            beside: list[float] = []

            def unhindered() -> bool:
                beside.append(best_of(neighbour, 3))
                return min(beside) <= alone * 1.2

            eventually(unhindered, within_s=60, what=f"{alone:.3f} s alone, again beside it")


@pytest.mark.serial
def test_whoever_takes_all_terminals_of_the_machine_spoils_nobody_elses_rollout(
    victim: Speaker, sandbox: Speaker
) -> None:
    terminal = {"rows": 24, "cols": 80}
    with victim.stream(["python3", "-c", _ALL_TERMINALS], timeout_s=60) as stream:
        assert any(event.get("data") == "all\n" for event in stream)
        refused = sandbox.exec("true", tty=terminal)
        assert (refused["outcome"], refused["fault"], refused["mask"]) == (
            "start_failed",
            "infra",
            True,
        )
        own = victim.exec("true", tty=terminal)
        assert (own["outcome"], own["fault"], own["mask"]) == ("start_failed", "agent", False)


@pytest.mark.requirement("RL-07")
def test_rl_07_shared_memory_holds_what_data_loaders_need_and_counts_as_memory(
    http: httpx.Client, can: dict[str, Any]
) -> None:
    if can["limits"]["memory"] != "enforced":
        pytest.skip(f"nobody counts memory here: {can['limits']}")
    with limited(http, memory_mb=512) as sandbox:
        before = int(sandbox.exec(_READ_MEMORY)["stdout"])
        filled = sandbox.exec("dd if=/dev/zero of=/dev/shm/x bs=1M count=200")
        assert filled["exit_code"] == 0, filled
        assert int(sandbox.exec(_READ_MEMORY)["stdout"]) - before > 190 * _MB


@pytest.mark.requirement("RL-10")
@pytest.mark.parametrize("text", [_ORPHANS, _DOUBLE_FORKS], ids=["orphans", "double forks"])
def test_rl_10_orphans_are_reaped(sandbox: Speaker, text: str) -> None:
    seen = sandbox.exec(text, timeout_s=90)
    assert (seen["outcome"], seen["exit_code"]) == ("exited", 0), seen
    eventually(
        lambda: int(sandbox.exec(_ZOMBIES)["stdout"]) <= 10, within_s=5, what="they are reaped"
    )
