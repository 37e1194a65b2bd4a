"""Whether to try again, and after how long. Knows errors and time, sends nothing."""

from __future__ import annotations

import random

from sandboxd_client.errors import (
    ApiUnreachable,
    BackendUnavailable,
    Capacity,
    SandboxdError,
    ShuttingDown,
)

# Passing states of the daemon; everything else is an answer.
_PASSING = (ApiUnreachable, Capacity, ShuttingDown, BackendUnavailable)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


class Patience:
    """How long one call goes on trying.

    deadline: on the caller's clock, in seconds; a pause that would end after it is not begun.
    """

    __slots__ = ("_deadline", "_random", "_tries")

    def __init__(self, *, deadline: float, chance: random.Random | None = None) -> None:
        self._deadline = deadline
        self._random = chance or _CHANCE
        self._tries = 0

    def pause(self, error: SandboxdError, *, safe: bool, now: float) -> float | None:
        """Seconds to wait before the next try; None if there must be none.

        safe: the request may be sent again although it may have arrived.
        """
        if not _passes(error) or not (error.retry_safe or safe):
            return None
        growing = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._tries)
        self._tries += 1
        # Jitter only lengthens what the server asked for, and spreads what we chose ourselves.
        if error.retry_after_s is not None:
            seconds = error.retry_after_s * self._random.uniform(1.0, 1.25)
        else:
            seconds = growing * self._random.uniform(0.5, 1.0)
        return seconds if now + seconds <= self._deadline else None

    def progress(self) -> None:
        """Something came of it: the next failure starts with a short pause again."""
        self._tries = 0


def _passes(error: SandboxdError) -> bool:
    of_a_proxy = error.status if isinstance(error, ApiUnreachable) else None
    return isinstance(error, _PASSING) and of_a_proxy not in _REFUSALS


# What a proxy of ours answers by itself, and will answer again: a body too large, say.
_REFUSALS = frozenset({400, 401, 403, 405, 407, 411, 413, 414, 415, 431})
_CHANCE = random.Random()  # noqa: S311 - spreads load, guards nothing
