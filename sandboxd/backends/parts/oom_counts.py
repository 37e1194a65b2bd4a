"""The kernel's counts about memory that ran out, so that those of a box's end can be told apart.

The kernel counts before it kills, and where two processes share their memory it counts one and
kills both, one after the other. A look in between sees the count of the end in a box that lives.
"""

from __future__ import annotations

from sandboxd.linux.group_readings import GroupReadings

_SETTLED_S = 5.0  # a rise that the box outlived by so much was none of its end


class OomCount:
    """What was seen of one count of a box (of kills, or of times that it met its own limit) while
    it lived. Times are those of one clock, in seconds.
    """

    def __init__(self) -> None:
        self._before = 0
        self._count = 0
        self._rose_at = float("-inf")

    def note(self, count: int, *, at: float) -> None:
        """A look at a box that lived."""
        if count == self._count:
            return
        if at - self._rose_at >= _SETTLED_S:
            self._before = self._count
        self._count, self._rose_at = count, at

    def before(self, *, end: float) -> int:
        """The count as it stood before an end at that time began."""
        return self._count if end - self._rose_at >= _SETTLED_S else self._before


class OomCounts:
    """Both counts of one box: of its processes that were killed, and of times that it met its own
    limit.
    """

    def __init__(self) -> None:
        self._kills = OomCount()
        self._limit_hits = OomCount()

    def note(self, seen: GroupReadings, *, at: float) -> None:
        """A look at a box that lived."""
        self._kills.note(seen.oom_kills or 0, at=at)
        self._limit_hits.note(seen.limit_hits or 0, at=at)

    def before(self, *, end: float) -> tuple[int, int]:
        """Kills and limit hits as they stood before an end at that time began."""
        return self._kills.before(end=end), self._limit_hits.before(end=end)
