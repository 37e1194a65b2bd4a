"""The kernel's counts about memory that ran out, so that those of a box's end can be told apart.

The kernel counts before it kills, and where two processes share their memory it counts one and
kills both, one after the other. A look in between sees the count of the end in a box that lives.
"""

from __future__ import annotations

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
