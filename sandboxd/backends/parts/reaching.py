"""The line to a living box's guest over its socket, and what becomes of a box that has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.parts.deaths import forged, lost
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.guest.proven import NotTheGuest, connect_guest, is_our_own
from sandboxd.linux.processes import is_ending
from sandboxd.wire.codes import ErrorCode

_UNREACHABLE_S = 2.0  # for a box whose guest does not listen to be found dead
_AGAIN_S = 0.005


class Reached(Protocol):
    """What is known of the box while it is waited for.

    gone: set once it is dead, and then `death` says why. is_ours: we are taking it away.
    """

    gone: anyio.Event
    death: Death | None
    is_ours: bool

    @property
    def box_id(self) -> str:
        """Its id."""
        ...


async def reach(
    box: Reached, socket: Path, *, guest_pid: int, end: Callable[[Death], Awaitable[None]]
) -> ByteStream:
    """A stream that is proven to be the guest's; the deadline is the caller's.

    end: has the box ended for that reason, and returns once it is gone. Whoever takes the guest's
    place, or takes its socket away, ends the box. Raises `sandbox_lost`, and `backend_unavailable`
    for a want of ours.
    """
    while True:
        try:
            return await connect_guest(socket, guest_pid)
        except NotTheGuest as error:
            await end(forged(box.box_id, peer_pid=error.peer_pid, guest_pid=guest_pid))
            raise lost(box.death) from error
        except BlockingIOError:  # the guest's queue of connections is full
            await anyio.sleep(_AGAIN_S)
        except OSError as error:
            if box.is_ours:  # we are taking it away
                raise lost(None) from error
            if is_our_own(error, socket.parent):
                raise SandboxdError(
                    ErrorCode.BACKEND_UNAVAILABLE,
                    f"the daemon cannot reach the sandbox ({error}): see `sandboxd doctor`",
                ) from error
            with anyio.move_on_after(_UNREACHABLE_S):
                await box.gone.wait()
            # A guest on its way out has closed its socket, and waits for all others in its box.
            if not box.gone.is_set() and not is_ending(guest_pid):
                await end(forged(box.box_id, peer_pid=0, guest_pid=guest_pid))
            await box.gone.wait()
            raise lost(box.death) from error
