"""Where frames of a WebSocket end, so that one of ours can be put between them. Pure."""

from __future__ import annotations

from struct import Struct

_SHORT, _LONG = Struct(">H"), Struct(">Q")
_CLOSE = 8
_MAX_REASON_BYTES = 123


class Borders:
    """Follows what a server sends. at_border: whether no frame is unfinished.

    closed: whether its close frame has begun, after which nothing may be put in.
    """

    __slots__ = ("_head", "_left", "closed")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self.closed = False

    @property
    def at_border(self) -> bool:
        """Whether no frame is unfinished."""
        return not self._left and not self._head

    def feed(self, data: bytes) -> None:
        """Follow what goes by."""
        place, size = 0, len(data)
        if self._head:
            data, self._head = self._head + data, b""
            size = len(data)
        while True:
            step = min(self._left, size - place)
            place, self._left = place + step, self._left - step
            if place == size:
                return
            head = _head_at(data, place)
            if head is None:
                self._head = data[place:]
                return
            self.closed = self.closed or data[place] & 0x0F == _CLOSE
            place, self._left = place + head[0], head[1]


def _head_at(data: bytes, place: int) -> tuple[int, int] | None:
    """Sizes of the head and the payload of a frame; None while the head is not all there."""
    have = len(data) - place
    if have < 2:
        return None
    size = data[place + 1] & 0x7F
    head = 6 if data[place + 1] & 0x80 else 2  # a server that masks is wrong, but no concern here
    if size < 126:
        return head, size
    length = _SHORT if size == 126 else _LONG
    if have < 2 + length.size:
        return None
    return head + length.size, length.unpack_from(data, place + 2)[0]


def close_frame(code: int, reason: str) -> bytes:
    """A server's close frame; a reason that is too long is cut."""
    text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
    return bytes((0x80 | _CLOSE, 2 + len(text))) + _SHORT.pack(code) + text
