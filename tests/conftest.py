"""What every test may use: an event loop on real time, or one whose clock jumps.

A test module says `pytestmark = pytest.mark.anyio`, and `pytest.mark.virtual_time` besides if
nothing in it waits for the outside world: then it runs on trio, whose clock jumps ahead whenever
all tasks wait, so that hours take milliseconds.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

Loop = tuple[str, dict[str, Any]]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks that these fixtures read."""
    config.addinivalue_line("markers", "virtual_time: run on trio with a clock that jumps")


def asyncio_loop() -> Loop:
    """Real time, as the daemon runs."""
    return ("asyncio", {"use_uvloop": False})


def jumping_loop() -> Loop:
    """Virtual time. Not for tests with sockets or processes: their waits would be jumped too."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Loop:
    """The loop that the test's mark asks for."""
    if request.node.get_closest_marker("virtual_time") is not None:
        return jumping_loop()
    return asyncio_loop()
