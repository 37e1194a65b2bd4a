"""Leases that end by a clock, and what becomes of one whose daemon was away."""

from __future__ import annotations

import httpx
import pytest

from sandboxd_client import LeaseEnded, Sandboxd
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.contract.verdicts.conftest import OpenHouse
from tests.contract.verdicts.kinds import (
    DIED_FOR_UNKNOWN,
    EXPIRED,
    IDLE,
    RUN_LOST,
    assert_ended,
    refused,
)

pytestmark = pytest.mark.timeout(120)


def test_at_its_hard_end_a_lease_is_expired_whatever_runs(client: Sandboxd) -> None:
    sandbox = client.lease("python", timeout_s=1)
    error = refused(lambda: sandbox.exec("sleep 300"))
    assert type(error) is LeaseEnded
    assert_ended(sandbox, EXPIRED)


def test_unused_for_too_long_a_lease_is_idle(client: Sandboxd) -> None:
    assert_ended(client.lease("python", idle_timeout_s=1), IDLE)


def test_a_run_that_is_not_heard_of_takes_its_leases_along(
    shared_house: House, client: Sandboxd
) -> None:
    beat = {"ttl_s": 1}
    with httpx.Client(base_url=shared_house.url, timeout=30) as http:
        assert http.put("/v1/runs/silent/heartbeat", json=beat).status_code == 200
        sandbox = client.lease("python", run_id="silent")
        assert_ended(sandbox, RUN_LOST)
        assert http.put("/v1/runs/silent/heartbeat", json=beat).status_code == 409
        assert http.delete("/v1/runs/silent").status_code == 200


def test_what_ended_while_no_daemon_ran_is_told_by_what_is_left_of_it(
    open_own_house: OpenHouse,
) -> None:
    """One whose hard end passed, which its guest kept by itself, and one that somebody killed."""
    with open_own_house() as house:
        with Sandboxd(url=house.url) as client:
            short, killed = client.lease("python", timeout_s=1), client.lease("python")
            boxes = [house.box_of(sandbox.id) for sandbox in (short, killed)]
        house.service.kill()
        house.kill(boxes[1])
        # Its own end comes 10 s after ours, which can say why.
        eventually(lambda: boxes[0] not in house.living(), within_s=30, what="the guest ends")
        house.service.start()
        with Sandboxd(url=house.url) as client:
            assert_ended(client.sandbox(short.id), EXPIRED)
            assert_ended(client.sandbox(killed.id), DIED_FOR_UNKNOWN)
