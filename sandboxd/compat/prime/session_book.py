"""What is remembered of command sessions, so that a client which sends something again, or comes
back, gets it once: how far its input is, and how much of the output it was sent.

Bounded, in memory alone. Forgetting loses no command: it makes the next writer ask how far the
input is, and the next reader begin with what comes from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import anyio

_MOST_SESSIONS = 8192
_MOST_IDS = 256  # of what was sent to one session; a client sends again for a minute and a half

SessionKey = tuple[str, str]  # ids of the sandbox and of the command


@dataclass(slots=True)
class Session:
    """One session. Hold `writing` while its input is written.

    taken: bytes of input that are in for sure; None where that has to be asked. begins: where the
    input of each request begins. sent: the number of the last event that was passed on. tty:
    whether it runs on a terminal.
    """

    writing: anyio.Lock = field(default_factory=anyio.Lock)
    taken: int | None = None
    sent: int | None = None
    tty: bool = False
    begins: OrderedDict[str, int] = field(default_factory=OrderedDict)
    signals: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def begin_of(self, input_id: str, *, taken: int) -> int:
        """Where a request's input begins: where it began when it came the first time."""
        if not input_id:
            return taken
        begin = self.begins.setdefault(input_id, taken)
        _bound(self.begins, _MOST_IDS)
        return begin

    def is_news(self, signal_id: str) -> bool:
        """Whether a signal has not been delivered yet, as far as is known."""
        return not signal_id or signal_id not in self.signals

    def delivered(self, signal_id: str) -> None:
        """A signal has been."""
        if signal_id:
            self.signals[signal_id] = None
            _bound(self.signals, _MOST_IDS)


class SessionBook:
    """The sessions of one daemon."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()

    def of(self, key: SessionKey) -> Session:
        """What is known of a session, were it nothing."""
        session = self._sessions.setdefault(key, Session())
        self._sessions.move_to_end(key)
        _bound(self._sessions, _MOST_SESSIONS)
        return session


def _bound(kept: OrderedDict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
