"""How events are poured out to one who follows: kept alive, and cut where nobody reads."""

from __future__ import annotations

import json

import anyio
import pytest

from sandboxd.api.routes.events import _pour
from sandboxd.errors import SandboxdError
from sandboxd.telemetry.events import Events, EventType, Follower
from sandboxd.wire.codes import ErrorCode
from tests.support.front import LoopClock

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def poured(events: Events, follower: Follower, *, for_s: float) -> list[bytes]:
    """What goes out in so many seconds."""
    out: list[bytes] = []

    async def emit(data: bytes) -> None:
        out.append(data)

    with anyio.move_on_after(for_s):
        await _pour(follower, emit)
    return out


async def test_silence_is_broken_every_15_seconds_with_a_place_to_come_back_to() -> None:
    events = Events(LoopClock(), epoch="aa")
    with events.follow(owner="me", run_id="r") as follower:
        events.tell(EventType.LEASE_QUEUED, owner="me", run_id="other")
        out = await poured(events, follower, for_s=46)
    assert out == [b": keepalive\nid: aa-1\n\n"] * 3


async def test_what_happens_together_goes_out_together_in_order() -> None:
    events = Events(LoopClock(), epoch="aa")
    with events.follow(owner="me") as follower:
        for number in range(3):
            events.tell(EventType.LEASE_QUEUED, owner="me", sandbox_id=f"s{number}")
        (out,) = await poured(events, follower, for_s=1)
    blocks = out.decode().removesuffix("\n\n").split("\n\n")
    assert [block.split("\n")[0] for block in blocks] == ["id: aa-1", "id: aa-2", "id: aa-3"]
    for number, block in enumerate(blocks):
        _, kind, data = block.split("\n")
        assert kind == "event: lease.queued"
        assert json.loads(data.removeprefix("data: "))["sandbox_id"] == f"s{number}"


async def test_a_reader_who_takes_nothing_for_30_seconds_is_dropped() -> None:
    events = Events(LoopClock(), epoch="aa")
    began = anyio.current_time()

    async def never(_data: bytes) -> None:
        await anyio.sleep_forever()

    with events.follow(owner="me") as follower:
        events.tell(EventType.LEASE_QUEUED, owner="me")
        with pytest.raises(SandboxdError) as caught:
            await _pour(follower, never)
    assert caught.value.code is ErrorCode.TIMEOUT
    assert anyio.current_time() - began == pytest.approx(30, abs=0.1)
