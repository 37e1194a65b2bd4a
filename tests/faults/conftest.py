"""Fixtures of the fault tests: a world on virtual time whose backend and store can be sabotaged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from sandboxd.backends.fake import open_fake
from tests.faults.sabotage import BadStore, Sabotage
from tests.support.front import World


@dataclass
class BadWorld(World):
    """A world in which things go wrong: see `Sabotage` and `BadStore`."""

    sabotage: Sabotage = None  # type: ignore[assignment]
    bad_store: BadStore = None  # type: ignore[assignment]


@asynccontextmanager
async def open_bad_world() -> AsyncIterator[BadWorld]:
    """One such world, for tests that need many."""
    async with open_fake() as fake:
        sabotage, store = Sabotage(fake), BadStore()
        world = BadWorld(backend=sabotage, store=store)  # type: ignore[arg-type]
        world.sabotage, world.bad_store = sabotage, store
        yield world


@pytest.fixture
async def world() -> AsyncIterator[BadWorld]:
    """One for this test."""
    async with open_bad_world() as opened:
        yield opened
