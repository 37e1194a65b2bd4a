"""Lines to guests that prove themselves by a token: the first, and why there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.parts.deaths import lost
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.guest.tcp import NotProven
from sandboxd.wire.codes import ErrorCode

_UNREACHABLE_S = 2.0
_STEP_S = 0.01
_LOOK_EVERY_S = 0.25  # how often a guest that does not answer yet is asked after
_DYING_S = 10.0

Dial = Callable[[], Awaitable[ByteStream]]  # raises OSError, NotProven
Lives = Callable[[], Awaitable[bool]]  # raises `backend_unavailable`: cannot tell


class EndedEarly(Exception):
    """The first process of a box ended before its guest answered."""


class Reached(Protocol):
    """What is known of a box: gone is set once it is dead, and then `death` says why."""

    gone: anyio.Event
    death: Death | None


async def wait_until_proven(dial: Dial, *, lives: Lives) -> ByteStream:
    """Until the guest has proven itself: the stream; the deadline is the caller's.

    Raises EndedEarly.
    """
    next_look = anyio.current_time() + _LOOK_EVERY_S
    while True:
        try:
            return await dial()
        except (OSError, NotProven):  # nobody yet, or somebody else's proxy before it
            if anyio.current_time() > next_look:
                next_look = anyio.current_time() + _LOOK_EVERY_S
                if not await lives():
                    raise EndedEarly from None
            await anyio.sleep(_STEP_S)


async def connect_proven(
    box: Reached, dial: Dial, *, lives: Lives, end: Callable[[], None], mend: str
) -> ByteStream:
    """A proven stream. Whoever else answers, or nobody, ends no box: ports are used again, and
    networks fail.

    end: has the box taken for dead. mend: what a person can look at where a living one is out of
    reach. Raises `sandbox_lost`, and then `backend_unavailable`.
    """
    try:
        return await dial()
    except (OSError, NotProven) as error:
        with anyio.move_on_after(_UNREACHABLE_S):
            await box.gone.wait()
        if not box.gone.is_set():
            if await lives():
                raise SandboxdError(
                    ErrorCode.BACKEND_UNAVAILABLE,
                    f"the daemon cannot reach the sandbox ({error}): {mend}",
                ) from error
            end()
            with anyio.move_on_after(_DYING_S):
                await box.gone.wait()
        raise lost(box.death) from error
