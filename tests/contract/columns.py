"""What sandboxes stand on in these checks, by the name of the backend."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.conftest import EngineHost
from tests.support.cluster import POD_IMAGE, TestCluster
from tests.support.cluster_pods import cluster_table

Below = EngineHost | TestCluster | None


@dataclass(frozen=True, slots=True)
class Column:
    """below: the container engine or the cluster, if there is one."""

    backend: str
    below: Below = None

    @property
    def image(self) -> str:
        """What sandboxes are made of."""
        if isinstance(self.below, TestCluster):
            return POD_IMAGE
        return "host" if self.below is None else self.below.image

    @property
    def table(self) -> str:
        """The table of the backend in a configuration."""
        if isinstance(self.below, TestCluster):
            return cluster_table(self.below)
        if self.below is None:
            return ""
        return f"[backend.docker]\nhost = {json.dumps(self.below.host)}\n"


def below_of(backend: str, request: pytest.FixtureRequest) -> Below:
    """The engine or the cluster that all tests share."""
    found: Below = None
    if backend == "docker":
        found = request.getfixturevalue("engine_host")
    elif backend == "kubernetes":
        found = request.getfixturevalue("cluster")
    return found


def column_of(below: Below) -> Column:
    """The column that stands on that."""
    if isinstance(below, TestCluster):
        return Column("kubernetes", below)
    return Column("local" if below is None else "docker", below)
