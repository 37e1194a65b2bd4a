"""Lines out of chunks, however the chunks fall."""

from __future__ import annotations

_LONGEST_LINE_BYTES = 64 << 20  # an event carries 1 MiB at most; beyond this it is not our daemon


class LineSplitter:
    """Feed chunks, get whole lines. Linear in the bytes, also for lines of many chunks."""

    __slots__ = ("_held", "_size")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes. Raises ValueError for one that never ends."""
        lines = chunk.split(b"\n")
        if len(lines) > 1 and self._held:
            self._held.append(lines[0])
            lines[0] = b"".join(self._held)
            self._held, self._size = [], 0
        rest = lines.pop()
        if rest:
            self._held.append(rest)
            self._size += len(rest)
            if self._size > _LONGEST_LINE_BYTES:
                raise ValueError(f"a line is longer than {_LONGEST_LINE_BYTES} bytes")
        return [line for line in lines if line]
