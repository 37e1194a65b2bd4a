"""Processes and disk that run out: the sandbox's own, and the host's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd_client import ExecResult, Sandbox, Sandboxd
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.contract.verdicts.conftest import OpenHouse
from tests.contract.verdicts.kinds import (
    DISK,
    DISK_MB,
    assert_ended,
    refused,
    verdict,
)
from tests.contract.verdicts.shortage import group_above, limited, number

pytestmark = pytest.mark.timeout(180)

# A bomb, whose processes end by themselves, and one who takes every place that it leaves.
_BOMB = """
bomb() { bomb & bomb & sleep 20; }
bomb 2> /dev/null &
exec python3 - <<'END'
import os, time
ends_at = time.monotonic() + 25
while time.monotonic() < ends_at:
    try:
        os.posix_spawn("/bin/sleep", ["sleep", "20"], {})
    except BlockingIOError:
        time.sleep(0.005)
END
"""


def test_a_fork_bomb_leaves_no_room_for_more_and_that_is_the_agents(small: Sandbox) -> None:
    bomb = small.start(_BOMB, timeout_s=30)
    seen: list[ExecResult] = []

    def full() -> bool:
        seen.append(small.exec("true"))
        return seen[-1].outcome == "start_failed"

    try:
        eventually(full, within_s=15, what="a command cannot be started")
    finally:
        bomb.signal("KILL")
    assert verdict(seen[-1]) == ("start_failed", "start_failed", "agent", False, 126)
    assert seen[-1].error is not None
    assert seen[-1].error.reason == "pids"
    # What came before its time was over could be started: nothing is in between.
    assert {result.outcome for result in seen} <= {"exited", "start_failed", "signaled"}
    assert not any(result.mask for result in seen)
    eventually(lambda: small.exec("true").ok, within_s=15, what="there is room again")


@pytest.fixture
def crowded(open_house_apart: OpenHouse) -> Iterator[tuple[House, Sandboxd, Sandbox]]:
    """A sandbox of few processes, below a group that may have no more than there are."""
    with open_house_apart(pool="ready = 0, max = 4") as house, Sandboxd(url=house.url) as client:
        sandbox = client.lease("small")
        assert sandbox.exec("true").ok
        above = group_above(house.first_process(house.box_of(sandbox.id)), "pids")
        with limited(above, "pids.max", number(above, "pids.current")):
            yield house, client, sandbox


def test_a_command_that_the_host_has_no_process_for_is_masked(
    crowded: tuple[House, Sandboxd, Sandbox],
) -> None:
    _, _, sandbox = crowded
    result = sandbox.exec("true")
    assert verdict(result) == ("start_failed", "start_failed", "infra", True, 126)
    assert result.error is not None
    assert result.error.reason == "pids"
    assert "not the sandbox" in result.error.detail


def test_a_sandbox_that_the_host_has_no_process_for_is_masked(
    crowded: tuple[House, Sandboxd, Sandbox],
) -> None:
    _, client, _ = crowded
    error = refused(lambda: client.lease("small", wait_timeout_s=20))
    assert (error.fault, error.mask) == ("infra", True), error
    assert error.code in {"start_failed", "backend_unavailable", "capacity"}


def test_a_disk_that_is_filled_ends_the_sandbox_with_the_reading(client: Sandboxd) -> None:
    with client.lease("small") as sandbox:
        if sandbox.info().limits["disk"] == "none":
            pytest.skip("this machine neither keeps nor watches a limit of disk")
        sandbox.start("head -c 40000000 /dev/zero > /var/tmp/fill; sync; sleep 60")
        evidence = assert_ended(sandbox, DISK, within_s=40)
        assert evidence["disk_limit_bytes"] == DISK_MB << 20
        assert evidence["disk_bytes"] > DISK_MB << 20
