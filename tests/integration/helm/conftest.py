"""A cluster whose Services lead somewhere, and that has the daemon's image."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.cluster import TestCluster
from tests.support.helm import Release, bring_services, release


@pytest.fixture(scope="session")
def served(cluster: TestCluster) -> TestCluster:
    bring_services(cluster)
    return cluster


@pytest.fixture
def fresh(served: TestCluster) -> Iterator[Release]:
    """A release that is not installed yet, alone in its namespace."""
    with release(served, "rollouts", f"helm-{secrets.token_hex(3)}") as opened:
        yield opened
