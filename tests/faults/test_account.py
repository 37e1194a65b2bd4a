"""The account of rollouts over a daemon that is killed again and again is balanced."""

from __future__ import annotations

import pytest

from tests.faults.account import Extent, keep_account
from tests.faults.ledger import Ledger
from tests.faults.yards import LocalYard

pytestmark = pytest.mark.serial


def check(ledger: Ledger) -> None:
    print(ledger)
    assert ledger.balanced, f"\n{ledger}"
    assert ledger.counts["commands answered"] > 0


@pytest.mark.timeout(300)
def test_rollouts_over_a_daemon_that_is_killed_are_all_accounted_for() -> None:
    check(keep_account(LocalYard(), extent=Extent(rounds=4, callers=6), seed=1))


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.parametrize("seed", [11, 12])
def test_many_rollouts_over_a_daemon_that_is_killed_are_all_accounted_for(seed: int) -> None:
    check(keep_account(LocalYard(), extent=Extent(rounds=40, callers=24), seed=seed))
