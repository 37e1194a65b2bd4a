"""What a server writes, cut into messages: one a line, whatever else stands between them. Pure."""

from __future__ import annotations

from sandboxd.mcp.messages import LARGEST_BYTES, Message, read_message


class LineReader:
    """Feed it bytes as they come, in pieces of any size.

    junk_bytes: how much was no message. lost: how many lines were longer than a message may be.
    """

    def __init__(self) -> None:
        self.junk_bytes = 0
        self.lost = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole by now."""
        *ended, rest = data.split(b"\n")
        messages = []
        for line in ended:
            self._keep(line)
            if (message := self._take()) is not None:
                messages.append(message)
        self._keep(rest)
        return messages

    def skip(self) -> None:
        """Some bytes are missing here: what is left of this line is no message."""
        self.junk_bytes += self._size
        self._pieces, self._size, self._skipping = [], 0, True

    def _keep(self, piece: bytes) -> None:
        if self._skipping or not piece:
            self.junk_bytes += len(piece)
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > LARGEST_BYTES:
            self.skip()
            self.lost += 1

    def _take(self) -> Message | None:
        line, self._pieces, self._size = b"".join(self._pieces).strip(), [], 0
        was_cut, self._skipping = self._skipping, False
        if was_cut or not line:
            return None
        message = read_message(line)
        if message is None:
            self.junk_bytes += len(line)
        return message
