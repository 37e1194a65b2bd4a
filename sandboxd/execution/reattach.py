"""Calls to a guest that outlive a broken line: asked again while the sandbox lives.

Only for what may be asked twice: everything that starts something is create-or-attach by its id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.wire.codes import ErrorCode

T = TypeVar("T")
TRIES = 3


async def ask(desk: Desk, tenancy: Tenancy, question: Callable[[Guest], Awaitable[T]]) -> T:
    """The guest's answer. Raises what the guest refuses; `lease_ended` or `sandbox_lost` where the
    lease is over; `backend_unavailable` for a living sandbox whose line breaks again and again.
    """
    tries = TRIES
    while True:
        try:
            async with desk.guest_of(tenancy) as guest:
                return await question(guest)
        except GuestLost as lost:
            tries -= 1
            if tries == 0:
                raise broken(tenancy, lost) from lost


async def ask_once(desk: Desk, tenancy: Tenancy, question: Callable[[Guest], Awaitable[T]]) -> T:
    """The same for what must not be asked twice: a line that broke after the question was sent is
    told as such, and what became of it is unknown.
    """
    try:
        async with desk.guest_of(tenancy) as guest:
            return await question(guest)
    except GuestLost as lost:
        raise broken(tenancy, lost) from lost


def broken(tenancy: Tenancy, lost: GuestLost) -> SandboxdError:
    """The sandbox lives, and its line is broken."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the line into the sandbox broke ({lost}); the sandbox lives",
        retry_safe=not lost.sent,
        sandbox_id=tenancy.lease.id,
    )
