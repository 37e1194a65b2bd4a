"""The output of one command: numbered pieces, head and tail kept, readers waited for. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from sandboxd.backends.fake.guest.refusals import Refusal

STREAMS = ("stdout", "stderr")
_MAX_PIECE_BYTES = 65536
_PATIENCE_S = 30.0
FIRST_SEQ = 2  # 1 is `started`


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stream, as the guest read them."""

    seq: int
    stream: str
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + len(self.data)


class Kept:
    """What is kept of one stream: the first half of the limit, and pieces that cover the last."""

    def __init__(self, limit: int) -> None:
        self.head_limit = limit - limit // 2
        self.tail_limit = limit // 2
        self.total = 0
        self.head: list[Piece] = []
        self.tail: deque[Piece] = deque()
        self.tail_bytes = 0

    def spare(self) -> Piece | None:
        """The oldest piece of the tail, if what comes after it fills the tail's half."""
        if self.tail and self.tail_bytes - len(self.tail[0].data) >= self.tail_limit:
            return self.tail[0]
        return None

    def add(self, piece: Piece) -> None:
        """Take a piece in; one that crosses the head's border was cut there by the caller."""
        self.total = piece.end
        if piece.end <= self.head_limit:
            self.head.append(piece)
        else:
            self.tail.append(piece)
            self.tail_bytes += len(piece.data)

    def room(self) -> int:
        """How many bytes the head still takes."""
        return max(0, self.head_limit - self.total)

    def close_head(self) -> None:
        """Give the rest of the head's room to the tail: a whole character does not fit in."""
        self.tail_limit += self.room()
        self.head_limit = min(self.head_limit, self.total)

    def drop_oldest(self) -> None:
        """Throw the oldest piece of the tail away."""
        self.tail_bytes -= len(self.tail.popleft().data)

    def forget(self) -> None:
        """Throw everything away but the count."""
        self.head.clear()
        self.tail.clear()
        self.tail_bytes = 0

    def pieces(self) -> Iterator[Piece]:
        """All that is kept, in order."""
        yield from self.head
        yield from self.tail

    def ends(self) -> tuple[bytes, bytes, int]:
        """Head, tail and the number of bytes between them, within the limit."""
        head = b"".join(piece.data for piece in self.head)
        tail = b"".join(piece.data for piece in self.tail)
        if len(head) + len(tail) == self.total and self.total <= self.head_limit + self.tail_limit:
            return head + tail, b"", 0
        tail = tail[-self.tail_limit :] if self.tail_limit else b""
        return head, tail, self.total - len(head) - len(tail)


class Reader:
    """Somebody who takes pieces in order. seq: the next one to take. dropped: was too slow."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.dropped = False


class Journal:
    """Both streams of a command, and who reads them."""

    def __init__(self, limit: int) -> None:
        self.kept = {name: Kept(limit) for name in STREAMS}
        self.next_seq = FIRST_SEQ
        self.finished = False
        self.output_dropped = False
        self.readers: list[Reader] = []
        self._ends: list[tuple[str, int]] = []  # stream and end of each piece ever numbered
        self._cut = dict.fromkeys(STREAMS, b"")  # characters that are not whole yet
        self._changed = anyio.Event()

    async def write(self, stream: str, data: bytes) -> None:
        """Take bytes in; waits for attached readers rather than throw away what they lack."""
        await anyio.lowlevel.checkpoint()
        if self.finished:
            return  # of a child that outlived its command
        data = self._cut[stream] + data
        whole = _whole_characters(data)
        self._cut[stream] = data[whole:]
        self._number(stream, data[:whole])
        await self._hold_back(self.kept[stream])

    def finish(self) -> None:
        """No more will come: the rest of cut characters too is output."""
        for stream in STREAMS:
            self._number(stream, self._cut[stream])
        self.finished = True
        self.notify()

    def forget(self) -> None:
        """Throw the text away, to make room for younger commands'."""
        self.output_dropped = True
        for kept in self.kept.values():
            kept.forget()

    def size(self) -> int:
        """Bytes of text kept now."""
        return sum(len(piece.data) for kept in self.kept.values() for piece in kept.pieces())

    def offsets_after(self, seq: int) -> dict[str, int]:
        """Where each stream stood after the piece of that number."""
        offsets = dict.fromkeys(STREAMS, 0)
        for stream, end in self._ends[: max(0, seq - FIRST_SEQ + 1)]:
            offsets[stream] = end
        return offsets

    def pieces_from(self, seq: int) -> list[Piece]:
        """What is kept from that number on, in order of numbers."""
        found = [p for kept in self.kept.values() for p in kept.pieces() if p.seq >= seq]
        return sorted(found, key=lambda piece: piece.seq)

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        """Contiguous bytes from an offset; none at the end. Raises Refusal `range`."""
        found = b""
        for piece in self.kept[stream].pieces():
            if piece.offset <= offset + len(found) < piece.end and len(found) < limit:
                found += piece.data[offset + len(found) - piece.offset :]
        if not found and offset != self.kept[stream].total and limit:
            raise Refusal("range", "these bytes are not kept", kept=self._ranges(stream))
        return found[:limit]

    async def changed(self) -> None:
        """Wait until a piece came, a reader took one, or it finished."""
        await self._changed.wait()

    def notify(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    def _number(self, stream: str, data: bytes) -> None:
        kept = self.kept[stream]
        while data:
            size = _border(data, min(kept.room() or _MAX_PIECE_BYTES, _MAX_PIECE_BYTES))
            if not size:
                kept.close_head()
                continue
            piece = Piece(self.next_seq, stream, kept.total, data[:size])
            self.next_seq += 1
            self._ends.append((stream, piece.end))
            kept.add(piece)
            data = data[size:]
        self.notify()

    async def _hold_back(self, kept: Kept) -> None:
        while (spare := kept.spare()) is not None:
            slow = [reader for reader in self.readers if reader.seq <= spare.seq]
            if not slow:
                kept.drop_oldest()
                continue
            before = [reader.seq for reader in slow]
            with anyio.move_on_after(_PATIENCE_S):
                while [reader.seq for reader in slow] == before and slow[0] in self.readers:
                    await self.changed()
                continue
            for reader in slow:
                reader.dropped = True
                self.readers.remove(reader)
            self.notify()

    def _ranges(self, stream: str) -> list[list[int]]:
        ranges: list[list[int]] = []
        for piece in self.kept[stream].pieces():
            if ranges and ranges[-1][1] == piece.offset:
                ranges[-1][1] = piece.end
            else:
                ranges.append([piece.offset, piece.end])
        return ranges


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` end at a character's border; all of what is not UTF-8 anyway."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # starts a character of 2, 3 or 4 bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < length and byte < 0xF8 else len(data)
        if byte < 0x80:
            break
    return len(data)


def _border(data: bytes, limit: int) -> int:
    """The last border of a character within the first `limit` bytes; 0 if none is there."""
    return len(data) if len(data) <= limit else _whole_characters(data[:limit])
