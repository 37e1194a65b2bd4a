"""Fixtures of the lease tests: everything runs on virtual time over the fake backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.front import Front, World, open_world, template


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A backend, a store and a clock that daemons come and go over."""
    async with open_world() as opened:
        yield opened


@pytest.fixture
async def front(world: World) -> AsyncIterator[Front]:
    """A daemon with two warm boxes of `python`."""
    async with world.daemon(template(ready=2, max=4)) as opened:
        await opened.full()
        yield opened
