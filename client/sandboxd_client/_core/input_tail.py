"""The last bytes of a command's input: those that may have to be sent again. Sends nothing."""

from __future__ import annotations

FULL_BYTES = 1 << 20


class InputTail:
    """Positions are byte offsets in the command's whole input. What is confirmed is let go.

    eof: the end of the input follows what is here.
    """

    __slots__ = ("_data", "eof", "start")

    def __init__(self, taken: int) -> None:
        """taken: how many bytes the command has been given so far, by whomever."""
        self._data = bytearray()
        self.start = taken
        self.eof = False

    @property
    def end(self) -> int:
        """The offset behind what is here."""
        return self.start + len(self._data)

    @property
    def is_full(self) -> bool:
        """Whether some of it should be confirmed before more is added."""
        return len(self._data) >= FULL_BYTES

    def add(self, data: bytes) -> None:
        """More input."""
        self._data += data

    def confirm(self, taken: int) -> None:
        """Let go of what lies before that offset: it need never be sent again."""
        count = min(max(0, taken - self.start), len(self._data))
        del self._data[:count]
        self.start += count

    def piece_at(self, offset: int, *, limit: int) -> bytes | None:
        """At most `limit` bytes from an offset on; empty: the input's end; None: no more yet.

        The end takes a position of its own: behind it is `end + 1`.
        """
        begin = offset - self.start
        assert begin >= 0
        if offset < self.end:
            return bytes(self._data[begin : begin + limit])
        return b"" if self.eof and offset == self.end else None
