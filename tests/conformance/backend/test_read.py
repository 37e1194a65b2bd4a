"""Readings from outside: what cannot be had is None, and nothing is made up."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef, LimitKind, Readings

pytestmark = pytest.mark.anyio


async def test_readings_of_a_living_box_are_whole_or_none(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(10):
        readings = await backend.read(box)
    enforced = backend.capabilities().limits["memory"] is LimitKind.ENFORCED
    assert (readings.memory_bytes is not None) == enforced
    assert (readings.oom_kills is not None) == backend.capabilities().oom_evidence
    if readings.memory_bytes is not None:
        assert 0 < readings.memory_bytes <= 512 << 20


async def test_readings_of_a_removed_box_are_none(backend: Backend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        await backend.dispose(box)
        assert await backend.read(box) == Readings()
