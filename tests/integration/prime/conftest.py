"""Daemons that clients of Prime's API speak to, on real boxes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.columns import below_of, column_of
from tests.support.daemon import RunningDaemon, run_daemon

CONFIG = """
[compat.prime]
images = {{"*" = "python"}}

[templates.python]
image = "{image}"
resources = {{cpu = 1.0, memory_mb = 2048, pids = 256, disk_mb = 5120}}
network = {{allow = ["index.example:443"]}}
pool = {{ready = 2, max = 20}}

{table}
"""


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    """One for all tests of a file, on each kind of boxes."""
    column = column_of(below_of(request.param, request))
    config = CONFIG.format(image=column.image, table=column.table)
    place = tmp_path_factory.mktemp("prime")
    with run_daemon(place, backend=column.backend, config=config) as running:
        yield running
