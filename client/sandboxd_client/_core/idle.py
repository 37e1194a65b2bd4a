"""The book of idle connections: which to use again, which to close. Decides, and awaits nothing."""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")

KEEP_IDLE_S = 240.0  # the daemon keeps idle connections for at least 300 s, so ours close first


class IdleConnections(Generic[C]):
    """Connections at rest, the last used first: what is warm stays warm, the rest ages out."""

    __slots__ = ("_keep_s", "_resting")

    def __init__(self, *, keep_s: float = KEEP_IDLE_S) -> None:
        self._keep_s = keep_s
        self._resting: list[tuple[float, C]] = []  # the time it came to rest, ascending

    def __len__(self) -> int:
        return len(self._resting)

    def put(self, connection: C, *, now: float) -> None:
        """Lay a connection to rest."""
        self._resting.append((now, connection))

    def take(self) -> C | None:
        """The one that rested least, if there is any; call `expire` first."""
        return self._resting.pop()[1] if self._resting else None

    def expire(self, *, now: float) -> list[C]:
        """Those that rested too long, for the caller to close."""
        keep = 0
        while keep < len(self._resting) and now - self._resting[keep][0] > self._keep_s:
            keep += 1
        old, self._resting = self._resting[:keep], self._resting[keep:] if keep else self._resting
        return [connection for _, connection in old]

    def clear(self) -> list[C]:
        """All of them, for the caller to close (or, after a fork, to forget)."""
        everything, self._resting = self._resting, []
        return [connection for _, connection in everything]
