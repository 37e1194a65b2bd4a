"""Calls to a guest that outlive a broken line: asked again while the sandbox lives.

Only for what may be asked twice: everything that starts something is create-or-attach by its id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol, TypeVar

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import ExecRecord

T = TypeVar("T")
TRIES = 3
START_S = 30.0  # for a command to start, in a sandbox that is short of everything
SILENCE_S = 60.0  # after so long without a word a guest is asked whether it is there at all


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


class Run(Protocol):
    """Creates a command or attaches to it, and waits for its end if told to."""

    def __call__(self, guest: Guest, /, *, wait: bool) -> Awaitable[ExecRecord]:
        """Its record."""
        ...


async def ask_to_the_end(
    desk: Desk,
    tenancy: Tenancy,
    run: Run,
    *,
    wait_s: float | None,
) -> ExecRecord:
    """The record of a command: once it ended, or as it stands after `wait_s` seconds (None: as
    long as it takes).

    The guest keeps deadlines itself. Raises as `ask` does, and TimeoutError where it is frozen:
    within `SILENCE_S + START_S`, however long the command may take.
    """
    over_at = inf if wait_s is None else anyio.current_time() + wait_s
    while True:
        left_s = over_at - anyio.current_time()
        with anyio.move_on_after(min(left_s, SILENCE_S)):
            return await ask(desk, tenancy, lambda g: run(g, wait=True))
        with anyio.fail_after(START_S):
            record = await ask(desk, tenancy, lambda g: run(g, wait=False))
            if record.outcome is not None or anyio.current_time() >= over_at:
                return await shown(desk, tenancy, record)


async def shown(desk: Desk, tenancy: Tenancy, record: ExecRecord) -> ExecRecord:
    """The same with its output, as it stands by now. Raises as `ask` does."""
    if record.shows_output:
        return record
    return await ask(desk, tenancy, lambda g: g.look_exec(record.exec_id))


async def ask_once(desk: Desk, tenancy: Tenancy, question: Callable[[Guest], Awaitable[T]]) -> T:
    """The same for what must not be asked twice: a line that broke after the question was sent is
    told as such, and what became of it is unknown.
    """
    try:
        async with desk.guest_of(tenancy) as guest:
            return await question(guest)
    except GuestLost as lost:
        raise await told(desk, tenancy, lost) from lost


async def told(desk: Desk, tenancy: Tenancy, lost: GuestLost) -> SandboxdError:
    """What a line that broke means, once it is known whether the sandbox lives: the line of one
    that is dying can break before anybody sees the death. Raises as `ask` does where it is over.
    """
    with anyio.move_on_after(START_S):
        await ask(desk, tenancy, lambda g: g.hello())
    return broken(tenancy, lost)


def broken(tenancy: Tenancy, lost: GuestLost) -> SandboxdError:
    """The sandbox lives, and its line is broken."""
    return lost.named(sandbox_id=tenancy.lease.id)
