"""How a `with` block ends what it opened: also when cancelled, and within bounds.

Never hides what happened inside the block.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from sandboxd_client._runtime import aio as runtime
from sandboxd_client.errors import LeaseEnded, SandboxdError, SandboxLost

_LOG = logging.getLogger("sandboxd_client")

END_S = 10.0


async def end_quietly(what: str, end: Callable[[], Awaitable[object]]) -> None:
    """Await `end()` for at most 10 s, cancelled or not. A failure is logged: the result stands.

    What could not be ended here ends by the lease's own clocks.
    """
    done = False
    with runtime.shielded(END_S):
        try:
            await end()
        except (LeaseEnded, SandboxLost):
            _LOG.debug("%s ended with its sandbox", what)
        except SandboxdError as error:
            _LOG.warning("%s could not be ended, its lease's clocks will: %s", what, error)
        done = True
    if not done:
        _LOG.warning("%s could not be ended within %g s, its lease's clocks will", what, END_S)
