"""Memory that runs out: a child's, a command's, the sandbox's own, and the host's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd_client import Sandbox, Sandboxd
from tests.contract.cases.houses import House
from tests.contract.verdicts.conftest import OpenHouse
from tests.contract.verdicts.kinds import (
    MEMORY_MB,
    OOM_OF_ITS_OWN,
    OOM_OF_THE_HOST,
    assert_ended,
    problem_verdict,
    refused,
    verdict,
)
from tests.contract.verdicts.shortage import group_above, limited, number

pytestmark = pytest.mark.timeout(180)

_MB = 1 << 20
_NEAR = 0.9 * MEMORY_MB * _MB
_HOG = "python3 -c 'held = [bytearray(b\"x\" * (1 << 20)) for _ in range(400)]'"
# Offers the first process to the kernel before all others, of which none holds much.
_OFFER = (
    "echo 1000 > /proc/1/oom_score_adj || exit 9; for n in 1 2 3 4 5 6; do"
    " python3 -c 'import time; held = bytearray(b\"x\" * (8 << 20)); time.sleep(60)' & done;"
    f" sleep 1; exec {_HOG}"
)


def test_a_command_that_hits_the_sandboxs_limit_ends_oom_and_the_sandbox_lives(
    small: Sandbox,
) -> None:
    result = small.exec(f"exec {_HOG}", timeout_s=60)
    assert verdict(result) == ("oom", "oom", "agent", False, 137)
    assert (result.signal, result.exit_code, result.oom_kills) == ("KILL", None, 1)
    assert small.exec("echo lives").stdout == "lives\n"


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_outlives_its_childs_oom_has_its_own_status_and_the_count(
    small: Sandbox, code: int
) -> None:
    result = small.exec(f"{_HOG}; exit {code}", timeout_s=60)
    assert verdict(result) == ("exited", None, None, False, code)
    assert result.oom_kills == 1
    assert small.exec("true").oom_kills == 0


def test_a_kill_beside_anothers_oom_long_ago_is_no_oom(small: Sandbox) -> None:
    assert small.exec(f"{_HOG}; true", timeout_s=60).oom_kills == 1
    result = small.exec("kill -9 $$")
    assert verdict(result) == ("signaled", "signaled", "agent", False, 137)


def test_a_deadline_during_an_oom_is_a_deadline(small: Sandbox) -> None:
    result = small.exec(f"{_HOG}; sleep 300", timeout_s=5)
    assert verdict(result) == ("timeout", "timeout", "agent", False, 124)
    assert result.oom_kills == 1


def test_a_shell_that_hits_the_limit_says_so(small: Sandbox) -> None:
    with small.shell() as shell:
        result = shell.run(f"exec {_HOG}", timeout_s=60)
    assert verdict(result) == ("oom", "oom", "agent", False, 137)
    assert result.shell_ended


def test_a_sandbox_whose_first_process_is_killed_for_its_own_memory_ends_oom(
    small: Sandbox,
) -> None:
    process = small.start(_OFFER, timeout_s=60)
    try:
        evidence = assert_ended(small, OOM_OF_ITS_OWN, within_s=30)
    except AssertionError:
        if process.wait().exit_code == 9:
            pytest.skip("nobody inside can offer the first process to the kernel")
        raise
    assert evidence["oom_kills"] >= 1
    assert evidence["memory_limit_bytes"] == MEMORY_MB * _MB
    # None where the engine took the group away first; the kernel's log says as much.
    assert evidence["memory_peak_bytes"] is None or evidence["memory_peak_bytes"] > _NEAR


@pytest.fixture
def starved(open_house_apart: OpenHouse) -> Iterator[tuple[House, Sandbox]]:
    """A sandbox far below its own limit, of which half is all that the group above has left."""
    with open_house_apart(pool="ready = 0, max = 4") as house, Sandboxd(url=house.url) as client:
        sandbox = client.lease("small")
        above = group_above(house.first_process(house.box_of(sandbox.id)), "memory")
        room = number(above, "memory.usage_in_bytes") + MEMORY_MB * _MB // 2
        with limited(above, "memory.limit_in_bytes", room):
            yield house, sandbox


def test_a_command_that_the_hosts_want_kills_is_masked(starved: tuple[House, Sandbox]) -> None:
    _, sandbox = starved
    result = sandbox.exec(f"exec {_HOG}", timeout_s=60)
    assert verdict(result) == ("oom", "oom", "infra", True, 137)
    assert result.oom_kills == 1
    assert result.error is not None
    assert "machine's memory" in result.error.detail
    assert sandbox.exec("echo lives").stdout == "lives\n"


def test_a_sandbox_that_the_hosts_want_kills_is_masked(starved: tuple[House, Sandbox]) -> None:
    _, sandbox = starved
    process = sandbox.start(_OFFER, timeout_s=60)
    try:
        evidence = assert_ended(sandbox, OOM_OF_THE_HOST, within_s=30)
    except AssertionError:
        if process.wait().exit_code == 9:
            pytest.skip("nobody inside can offer the first process to the kernel")
        raise
    assert evidence["memory_peak_bytes"] is None or evidence["memory_peak_bytes"] < _NEAR


def test_a_set_up_that_the_sandboxs_own_limit_kills_is_the_tasks_fault(
    client: Sandboxd, small: Sandbox
) -> None:
    del small  # which shows that there is a limit
    error = refused(lambda: client.lease("greedy", wait_timeout_s=60))
    assert problem_verdict(error) == ("start_failed", "task", True, False)
    assert "ran out of the sandbox's memory" in str(error)
