"""How a command ends, each way brought about for real, and what its Exec says of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sandboxd_client import CommandFailed, LeaseEnded, Sandbox, Sandboxd
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.contract.verdicts.conftest import OpenHouse
from tests.contract.verdicts.kinds import (
    RELEASED,
    assert_ended,
    refused,
    verdict,
)

pytestmark = pytest.mark.timeout(120)

_TOO_LONG = "x" * 200_000


@pytest.mark.parametrize(
    ("cmd", "told"),
    [
        ("true", ("exited", None, None, False, 0)),
        ("exit 7", ("exited", None, None, False, 7)),
        ("kill -9 $$", ("signaled", "signaled", "agent", False, 137)),
        ("kill -TERM $$", ("signaled", "signaled", "agent", False, 143)),
        ("kill -SEGV $$", ("signaled", "signaled", "agent", False, 139)),
        (["no-such-program"], ("start_failed", "start_failed", "agent", False, 127)),
        (["/etc/hostname"], ("start_failed", "start_failed", "agent", False, 126)),
        (["echo", _TOO_LONG], ("start_failed", "start_failed", "agent", False, 126)),
    ],
    ids=["zero", "seven", "KILL", "TERM", "SEGV", "not-found", "not-executable", "too-long"],
)
def test_what_the_agents_own_command_does_is_scored(
    box: Sandbox, cmd: str | list[str], told: tuple[object, ...]
) -> None:
    result = box.exec(cmd, timeout_s=30)
    assert verdict(result) == told
    assert (result.exit_code is not None) is (result.outcome == "exited")
    assert result.oom_kills == 0
    if not result.ok:
        with pytest.raises(CommandFailed) as caught:
            result.check()
        assert (caught.value.fault, caught.value.mask) == (result.fault, result.mask)


@pytest.mark.parametrize("wish", [{"cwd": "/nope"}, {"user": "nobody-of-that-name"}])
def test_a_place_or_user_that_the_call_named_is_the_callers_fault(
    box: Sandbox, wish: dict[str, str]
) -> None:
    result = box.exec("true", **wish)  # type: ignore[arg-type]
    assert verdict(result) == ("start_failed", "start_failed", "client", True, 126)
    assert result.error is not None
    assert result.error.reason in {"bad_cwd", "bad_user"}


def test_a_deadline_is_the_agents_and_the_tree_is_dead(box: Sandbox) -> None:
    result = box.exec("sleep 300 & sleep 301", timeout_s=0.5)
    assert verdict(result) == ("timeout", "timeout", "agent", False, 124)
    assert "sleep" not in box.exec("cat /proc/[0-9]*/comm").stdout


def test_a_callers_signal_is_told_apart_from_the_agents_own(box: Sandbox) -> None:
    process = box.start("exec sleep 300")
    process.signal("TERM")
    assert verdict(process.wait()) == ("killed", "killed", "client", False, 137)


def test_a_release_under_a_running_command_gives_its_caller_the_leases_end_and_no_exec(
    client: Sandboxd,
) -> None:
    sandbox, runs = client.lease("python"), threading.Event()

    def wait_for_it() -> object:
        runs.set()
        return refused(lambda: sandbox.exec("sleep 300"))

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(wait_for_it)
        assert runs.wait(10)
        eventually(lambda: bool(sandbox.execs()), within_s=10, what="it runs")
        sandbox.release()
        error = answer.result(20)
    assert isinstance(error, LeaseEnded)
    assert error.details["end"]["reason"] == "released"
    assert_ended(sandbox, RELEASED)


def test_a_caller_that_goes_away_ends_nothing_and_comes_back_to_the_true_status(
    shared_house: House, box: Sandbox
) -> None:
    cmd = {"cmd": "echo x >> /tmp/n; sleep 2; exit 5", "exec_id": "left"}
    with (
        httpx.Client(base_url=shared_house.url, timeout=0.5) as hasty,
        pytest.raises(httpx.ReadTimeout),
    ):
        hasty.post(f"/v1/sandboxes/{box.id}/execs", json=cmd)
    assert verdict(box.process("left").wait()) == ("exited", None, None, False, 5)
    assert box.exec("cat /tmp/n").stdout == "x\n"


def test_a_command_over_which_the_daemon_is_killed_ends_as_it_would_have(
    open_own_house: OpenHouse,
) -> None:
    with open_own_house() as house:
        with Sandboxd(url=house.url) as client:
            sandbox = client.lease("python")
            for exec_id, text in (("ends", "sleep 1; exit 5"), ("goes-on", "sleep 300")):
                sandbox.start(text, exec_id=exec_id)
        house.service.kill()
        house.service.start()
        with Sandboxd(url=house.url) as client:
            again = client.sandbox(sandbox.id)
            assert verdict(again.process("ends").wait()) == ("exited", None, None, False, 5)
            going = again.process("goes-on")
            going.signal("KILL")
            assert verdict(going.wait()) == ("killed", "killed", "client", False, 137)
            assert "adopted" in [line["event"] for line in again.logs()]
            again.release()
