"""Daemons that clients of Prime's API speak to, on real boxes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import RunningDaemon, run_daemon

CONFIG = """
[compat.prime]
images = {"*" = "python"}

[templates.python]
image = "host"
resources = {cpu = 1.0, memory_mb = 2048, pids = 256, disk_mb = 5120}
network = {allow = ["index.example:443"]}
pool = {ready = 2, max = 20}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One for all tests of a file."""
    with run_daemon(tmp_path_factory.mktemp("prime"), backend="local", config=CONFIG) as running:
        yield running
