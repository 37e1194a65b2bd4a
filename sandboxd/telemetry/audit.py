"""Who did what: a log line for each act that changes who holds what, or how the daemon behaves.

Acts that succeeded are always written. Refusals are written while they are few: so many strangers
as there may be, they cannot fill a log, and each line says how many were left out before it. Lines
hold names and ids, never a key, a token, a query or a body.
"""

from __future__ import annotations

from typing import Any

import structlog

from sandboxd.token_bucket import TokenBucket

_BURST = 20
_PER_S = 1.0

_log = structlog.get_logger("audit")


def act(name: str, /, *, who: str, **facts: Any) -> None:
    """Something was done. who: a key's name, `operator`, `local`, `sandboxd` itself, or a token's
    bearer.
    """
    _log.info("audit", logger="audit", act=name, who=who, **facts)


class Refusals:
    """The lines of what was refused: a burst of them, and then one a second, over all callers."""

    def __init__(self) -> None:
        self._lines = TokenBucket(_PER_S, at_once=_BURST)
        self._left_out = 0

    def refused(self, name: str, /, *, who: str, **facts: Any) -> None:
        """Something was asked for and not done."""
        if self._lines.take() > 0:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        act(name, who=who, **facts, left_out=left_out)
