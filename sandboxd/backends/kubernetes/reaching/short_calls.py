"""What this backend itself asks of guests, each time on a line of its own; never vital."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio

from sandboxd.backends.kubernetes.reaching.way import Reach
from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.backends.protocol import Readings
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestLost
from sandboxd.guest.tcp import NotProven

_READ_S = 5.0
_END_S = 0.5
_NO_ANSWER = (SandboxdError, GuestLost, OSError, NotProven)  # a deadline among them


async def read_guest(reach: Reach, record: BoxRecord) -> Readings:
    """What the guest says that its box uses; all None where it does not answer."""
    guest = Guest(partial(reach.dial, record))
    try:
        with anyio.fail_after(_READ_S):
            said = await guest.readings()
    except _NO_ANSWER:
        return Readings()
    finally:
        await guest.aclose()
    return Readings(
        cpu_s=said.cpu_s,
        memory_bytes=said.memory_bytes,
        memory_peak_bytes=said.memory_peak_bytes,
        oom_kills=said.oom_kills,
    )


async def end_guest(reach: Reach, record: BoxRecord) -> None:
    """Have the guest end its box: a pod whose containers have ended goes sooner.

    A node gives those that still run two seconds more than they need.
    """
    guest = Guest(partial(reach.dial, record))
    try:
        with anyio.move_on_after(_END_S), suppress(*_NO_ANSWER):
            await guest.end()
    finally:
        await guest.aclose()
