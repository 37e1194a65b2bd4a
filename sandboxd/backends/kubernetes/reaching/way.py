"""What every way to a guest owes the rest of this backend. Knows none of them."""

from __future__ import annotations

from typing import Protocol

from anyio.abc import ByteStream

from sandboxd.backends.kubernetes.records import BoxRecord


class Reach(Protocol):
    """One way to guests, the same for all boxes of a daemon.

    arguments: what the guest's `serve` is told besides. keeps_lines: whether the line on which a
    guest proved itself at its start is kept for its first caller. mend: what a person can look at
    where a living box is out of reach.
    """

    arguments: tuple[str, ...]
    keeps_lines: bool
    mend: str

    async def dial(self, record: BoxRecord) -> ByteStream:
        """A stream to the guest, proven to be the guest's. Raises OSError, NotProven."""
        ...
