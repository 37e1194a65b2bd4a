"""What a claim says to guests of both numbers that are spoken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxd.backends.fake.guest.server import Reply, Request, json_reply, serve
from sandboxd.backends.fake.pipes import stream_pair
from sandboxd.guest import Guest
from sandboxd.model.claim import Affinity, Claim

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

BOUND = Claim(lease_id="l", affinity=Affinity(2, 5))
HELLO: dict[str, Any] = {
    "version": "x", "boot_id": "b", "lease_id": "", "ready": False, "life_left_s": None,
    "uptime_s": 1, "execs_running": 0, "idle_s": 0, "shell": "",
}  # fmt: skip


async def heard(claim: Claim, *, speaks: int, known: int | None) -> list[Mapping[str, Any] | str]:
    """The calls that a guest hears of a claim, in their order; the claim's as its body."""
    calls: list[Mapping[str, Any] | str] = []

    async def answer(request: Request) -> Reply:
        calls.append(await request.json() if request.method == "POST" else request.parts[0])
        said = {**HELLO, "protocol": speaks, "protocols": [speaks - 1, speaks]}
        return json_reply(said if request.method == "GET" else {"boot_id": "b"})

    async with anyio.create_task_group() as tasks:

        async def connect() -> ByteStream:
            ours, theirs = stream_pair()
            tasks.start_soon(serve, theirs, answer)
            return ours

        guest = Guest(connect, protocol=known)
        await guest.claim(claim)
        await guest.aclose()
        tasks.cancel_scope.cancel()
    return calls


@pytest.mark.parametrize("known", [None, 3])
async def test_a_guest_that_knows_it_is_told_where_commands_run(known: int | None) -> None:
    calls = await heard(BOUND, speaks=3, known=known)
    assert [isinstance(call, str) for call in calls] == ([True] if known is None else []) + [False]
    assert dict(calls[-1])["affinity"] == {"count": 2, "first": 5}  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [None, 2])
async def test_an_older_guest_hears_nothing_that_it_would_refuse(known: int | None) -> None:
    calls = await heard(BOUND, speaks=2, known=known)
    assert "affinity" not in calls[-1]


async def test_nobody_is_asked_where_nothing_is_bound() -> None:
    (only,) = await heard(Claim(lease_id="l"), speaks=2, known=None)
    assert "affinity" not in only
