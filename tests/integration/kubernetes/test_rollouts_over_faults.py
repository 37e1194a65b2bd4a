"""The account of rollouts over a cluster whose pods, kubelet and API server are killed while the
daemon is: nothing is lost, wrong, run twice, handed out again or left over.
"""

from __future__ import annotations

import pytest

from tests.faults.account import Extent, keep_account
from tests.faults.ledger import Ledger
from tests.faults.pods_yard import MOST, KubernetesYard
from tests.faults.troubles import AT_ONCE
from tests.support.cluster import TestCluster

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.serial,
    # A call of the test's own leaves a socket to the collector whose handshake a killed server cut.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def check(ledger: Ledger) -> None:
    print(ledger)
    assert ledger.balanced, f"\n{ledger}"
    assert ledger.counts["commands answered"] > 0


@pytest.mark.timeout(280)
@pytest.mark.requirement("K8-09")
def test_rollouts_over_a_cluster_that_is_upset_are_all_accounted_for(cluster: TestCluster) -> None:
    extent = Extent(rounds=4, leases=20, callers=8, engine_rounds=0.6, life_s=1.0)
    check(keep_account(KubernetesYard(cluster), extent=extent, seed=4))


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.requirement("K8-09")
def test_two_hundred_leases_over_thirty_pods_that_are_upset_are_all_accounted_for(
    cluster: TestCluster,
) -> None:
    extent = Extent(rounds=10, leases=200, callers=36, engine_rounds=0.4, within_s=450)
    ledger = keep_account(KubernetesYard(cluster), extent=extent, seed=21)
    check(ledger)
    assert ledger.counts[AT_ONCE] >= MOST
