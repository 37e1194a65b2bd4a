"""What a key may hold, as the SDK tells it."""

from __future__ import annotations

import pytest

from sandboxd_client import AsyncSandboxd

pytestmark = pytest.mark.anyio


async def test_a_key_sees_its_quota_and_what_it_holds(client: AsyncSandboxd) -> None:
    async with client.lease("python"):
        quota = await client.quota()
    assert (set(quota.limits), quota.limits["leases"]) == (
        {"leases", "cpu", "memory_mb", "creates_per_minute"}, None,
    )  # fmt: skip
    assert quota.used["leases"] >= 1
    assert quota.creates_left is None
