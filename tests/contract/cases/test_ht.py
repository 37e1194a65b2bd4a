"""Bug cases HT: what the SDK owes its callers, however they leave and whatever fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import pytest

from sandboxd_client import CommandFailed, ExecResult, Sandboxd, SandboxdError
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.support.daemon import ROOT, RunningDaemon
from tests.support.leaving import TEMPLATE, WAYS

OpenHouse = Callable[..., AbstractContextManager[House]]


@contextmanager
def room_for(daemon: RunningDaemon, count: int) -> Iterator[None]:
    """The pool that the program uses, with so many places."""
    pool = f"{daemon.url}/v1/pools/{TEMPLATE}"
    httpx.patch(pool, json={"max": count}, timeout=30).raise_for_status()
    try:
        yield
    finally:
        httpx.patch(pool, json={"max": 8}, timeout=30).raise_for_status()


def exists(daemon: RunningDaemon) -> int:
    """How many boxes there are of that pool, in whatever state."""
    pools = httpx.get(f"{daemon.url}/v1/pools", timeout=30).json()["pools"]
    (pool,) = (each for each in pools if each["template"] == TEMPLATE)
    return sum(int(pool[state]) for state in ("ready", "making", "leased", "disposing", "queued"))


@pytest.mark.requirement("HT-06")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_ht_06_leaving_a_with_gives_the_sandbox_back(daemon: RunningDaemon, way: str) -> None:
    """The caller sees what happened, and nothing else is said; no connection is left."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    # Python warns of what was not closed in its loop, to those alone who ask for it.
    flags = [] if way == "loop closed" else ["-W", "default"]
    with room_for(daemon, 1):
        told = subprocess.run(
            [sys.executable, *flags, "-m", "tests.support.leaving", daemon.url, way],
            capture_output=True,
            text=True,
            env=environ,
            cwd=ROOT,
            timeout=45,
            check=False,
        )
        assert (told.returncode, told.stderr) == (0, "")
        seen = json.loads(told.stdout)
        assert (seen["seen"], seen["sockets"]) == (WAYS[way][1], 0)
        eventually(lambda: exists(daemon) == 0, within_s=10, what="its box is gone")
        with Sandboxd(url=daemon.url) as client:
            for sandbox_id in seen["held"]:
                end = client.sandbox(sandbox_id).info().end
                assert end is not None
                assert end.reason == "released"


@pytest.mark.requirement("HT-08")
@pytest.mark.serial
@pytest.mark.timeout(90)
def test_ht_08_eight_ends_are_told_apart_and_ours_are_masked(open_house: OpenHouse) -> None:
    with open_house(pool="ready = 0, max = 3") as house, Sandboxd(url=house.url) as client:
        works, dead, short = (client.lease("python", wait_timeout_s=30) for _ in range(3))
        ends: dict[str, Callable[[], object]] = {
            "exit": lambda: works.exec("exit 1").check(),
            "timeout": lambda: works.exec("sleep 60", timeout_s=0.5).check(),
            "bad request": lambda: client.lease("no-such-template"),
            "killed": lambda: dead.exec("true"),
            "expired": lambda: short.exec("true"),
        }
        if client.version().raw["limits"]["memory"] == "enforced":
            hog = "x = b'x' * (1 << 30)"
            ends["oom"] = lambda: works.exec(["python3", "-c", hog], timeout_s=60).check()
        house.kill(house.box_of(dead.id))
        eventually(lambda: dead.info().end is not None, within_s=10, what="its death is known")
        filling = client.lease("python", wait_timeout_s=30)
        told = {"capacity": raised_by(lambda: client.lease("python", wait_timeout_s=0.3))}
        filling.release()
        short.renew(1)
        eventually(lambda: short.info().end is not None, within_s=10, what="it expired")
        told |= {name: raised_by(call) for name, call in ends.items()}
        house.service.kill()
        with Sandboxd(url=house.url, patience_s=0) as nobody:
            told["down"] = raised_by(lambda: nobody.sandbox(works.id).exec("true"))
        house.service.start()

    kinds = {name: kind_of(error) for name, error in told.items()}
    assert len(set(kinds.values())) == len(told), kinds
    masked = {name for name, error in told.items() if error.mask}
    assert masked == {"killed", "down", "capacity", "expired", "bad request"}
    infra = {name for name, error in told.items() if error.fault in {"infra", "unknown"}}
    assert infra == {"killed", "down", "capacity"}
    assert {told[name].fault for name in ("expired", "bad request")} == {"client"}
    assert {told[name].fault for name in {"timeout", "oom"} & set(told)} == {"agent"}


def raised_by(call: Callable[[], object]) -> SandboxdError | CommandFailed:
    """What a trainer has in its hands."""
    with pytest.raises((SandboxdError, CommandFailed)) as caught:
        call()
    error = caught.value
    assert isinstance(error, SandboxdError | CommandFailed)
    return error


def kind_of(error: SandboxdError | CommandFailed) -> str:
    """By what it is told apart: the class of an error, the outcome of a command."""
    result: ExecResult | None = getattr(error, "result", None)
    return type(error).__name__ if result is None else str(result.outcome)
