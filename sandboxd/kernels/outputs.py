"""What a cell shows, put together as a notebook has it (nbformat 4), within bounds. Pure.

Beyond the bounds the head and the tail of each stream are kept, and of displays the first ones; the
cell says `truncated`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

Output = dict[str, Any]

STREAM_CHARS = 1 << 20
DISPLAY_BYTES = 8 << 20
MOST_OUTPUTS = 10_000

TEXT_CHARS = STREAM_CHARS + 4096  # a whole stream and the mark of its gap

_PIECE_CHARS = 4096
_COST = 200  # of an output, in bytes, whatever it shows
_STRETCH_COST = 400  # of a stretch of a stream

_GAP = "\n[… {} characters are missing here …]\n"


class StreamText:
    """One stream's text: head and tail of it, and how much lies between."""

    __slots__ = ("_head", "_head_size", "_length", "_limit", "_tail", "_tail_size")

    def __init__(self, limit: int = STREAM_CHARS) -> None:
        self._limit = limit // 2
        self._length = 0
        self._head: list[str] = []
        self._head_size = 0
        # Up to a piece more than the limit, so that a flood of characters moves nothing each time.
        self._tail: deque[str] | None = None  # most have none
        self._tail_size = 0

    def add(self, text: str) -> None:
        """More of it."""
        self._length += len(text)
        room = self._limit - self._head_size
        if room > 0:
            _append(self._head, text[:room])
            self._head_size += min(room, len(text))
        text = text[max(room, len(text) - self._limit) :]
        if text:
            self._add_to_tail(text)

    def _add_to_tail(self, text: str) -> None:
        tail = self._tail = self._tail or deque()
        self._tail_size += len(text)
        for start in range(0, len(text), _PIECE_CHARS):
            _append(tail, text[start : start + _PIECE_CHARS])
        while tail and self._tail_size - len(tail[0]) >= self._limit:
            self._tail_size -= len(tail.popleft())

    @property
    def size(self) -> int:
        """How many characters are kept."""
        return self._length - self.missing

    @property
    def missing(self) -> int:
        """How many characters are not kept."""
        return self._length - self._head_size - min(self._tail_size, self._limit)

    @property
    def room(self) -> int:
        """How many more characters it may come to hold."""
        return 2 * self._limit - self._head_size - min(self._tail_size, self._limit)

    def text(self) -> str:
        """What is kept, the gap marked."""
        head, tail = "".join(self._head), "".join(self._tail or ())
        if not self.missing:
            return head + tail
        return head + _GAP.format(self.missing) + tail[-self._limit :]


def _append(pieces: list[str] | deque[str], text: str) -> None:
    """As part of the last piece, if both are small: single characters are not kept one by one."""
    if pieces and len(pieces[-1]) + len(text) <= _PIECE_CHARS:
        pieces[-1] += text
    else:
        pieces.append(text)


class Outputs:
    """The outputs of one cell in the order in which they came. displays: the bytes that they may
    take; streams: the characters of either stream.
    """

    def __init__(self, *, displays: int = DISPLAY_BYTES, streams: int = STREAM_CHARS) -> None:
        self._limit = displays
        self._stream_limit = streams
        self.truncated = False
        self.streams = {name: StreamText(streams) for name in ("stdout", "stderr")}
        self._list: list[_Kept] = []
        self._by_display: dict[str, _Display] = {}
        self._bytes = 0
        self._clear_next = False

    @property
    def size(self) -> int:
        """What is kept, in bytes, about."""
        return self._bytes + sum(stream.size for stream in self.streams.values())

    def stream(self, name: str, text: str) -> None:
        """Text on `stdout` or `stderr`."""
        self._about_to_show()
        whole = self.streams[name]
        whole.add(text)
        last = self._list[-1] if self._list else None
        if last is None or last.text is None or last.output["name"] != name:
            stretch = StreamText(self._stream_limit)
            output = {"output_type": "stream", "name": name}
            last = self._keep(output, text=stretch, size=_STRETCH_COST)
        if last is not None and last.text is not None:
            size = min(len(text), last.text.room)
            if self._has_room(size):
                last.text.add(text)
                self._resize(last, last.size + size)
            self.truncated |= bool(last.text.missing)
        self.truncated |= bool(whole.missing)

    def show(self, output: Output, *, size: int) -> Output | None:
        """A display, a result or an error, and about how many bytes it takes. Returns it as it is
        kept, None if there is no room.
        """
        self._about_to_show()
        kept = self._keep(output, text=None, size=_COST + size)
        if kept is None:
            return None
        display_id = output.get("transient", {}).get("display_id")
        if display_id:
            self._by_display.setdefault(display_id, _Display()).join(kept)
        return kept.output

    def update(
        self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any], *, size: int
    ) -> None:
        """Displays of that id show something else now, of about that many bytes."""
        display = self._by_display.get(display_id)
        if display is None:
            return
        more = display.growth(_COST + size)
        if self._has_room(more):
            display.update({"data": data, "metadata": metadata}, size=_COST + size)
            self._bytes += more

    def clear(self, *, wait: bool) -> None:
        """Nothing is shown any more; wait: as soon as there is something else to show."""
        if wait:
            self._clear_next = True
        else:
            self._list.clear()
            self._by_display.clear()
            self._bytes = 0

    def listed(self) -> tuple[Output, ...]:
        """The outputs, as a notebook has them."""
        return tuple(
            {**kept.output, "text": kept.text.text()} if kept.text else _as_kept(kept.shown)
            for kept in self._list
        )

    def read(self) -> str:
        """The text of it: stdout, what displays and results say in words, and errors, in order, as
        it was sent. Head and tail of it, if it is very long, which is `truncated` too.
        """
        words: list[str] = []
        last_apart = False
        for kept in self._list:
            said = _words_of(kept.shown) if kept.text is None else kept.text.text()
            if not said or kept.output.get("name") == "stderr":
                continue
            # A display stands on lines of its own, between stretches of what was printed.
            apart = kept.text is None or last_apart
            if words and apart and not words[-1].endswith("\n"):
                words.append("\n")
            words.append(said)
            last_apart = kept.text is None
        text = "".join(words)
        missing = len(text) - TEXT_CHARS
        if missing <= 0:
            return text
        self.truncated = True
        half = TEXT_CHARS // 2
        return text[:half] + _GAP.format(missing) + text[-half:]

    def _about_to_show(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self.clear(wait=False)

    def _keep(self, output: Output, *, text: StreamText | None, size: int) -> _Kept | None:
        if len(self._list) >= MOST_OUTPUTS:
            self.truncated = True
            return None
        if not self._has_room(size):
            return None
        kept = _Kept(output, text)
        self._list.append(kept)
        self._resize(kept, size)
        return kept

    def _has_room(self, more: int) -> bool:
        fits = self._bytes + more <= self._limit
        self.truncated |= not fits
        return fits

    def _resize(self, kept: _Kept, size: int) -> None:
        self._bytes += size - kept.size
        kept.size = size


class _Kept:
    """An output; text: of a stream; updated: what it shows by now instead, as others do."""

    __slots__ = ("output", "size", "text", "updated")

    def __init__(self, output: Output, text: StreamText | None) -> None:
        self.output = output
        self.text = text
        self.size = 0
        self.updated: Output = {}

    @property
    def shown(self) -> Output:
        """The output as it was updated last."""
        return {**self.output, **self.updated}


class _Display:
    """Outputs that are updated together: how many they are costs only the first update time."""

    __slots__ = ("_count", "_fresh", "_newest", "_size")

    def __init__(self) -> None:
        self._newest: Output = {}  # one for all
        self._fresh: list[_Kept] = []  # that were not updated yet
        self._count = 0
        self._size = 0

    def join(self, kept: _Kept) -> None:
        """One more of them."""
        self._fresh.append(kept)
        self._count += 1
        self._size += kept.size

    def growth(self, size: int) -> int:
        """By how many bytes they grow if each has that many."""
        return self._count * size - self._size

    def update(self, newest: Output, *, size: int) -> None:
        """All of them show that now, of so many bytes each."""
        for kept in self._fresh:
            kept.output = {k: v for k, v in kept.output.items() if k not in newest}
            kept.updated = self._newest
        self._fresh.clear()
        self._newest.update(newest)
        self._size = self._count * size


def _words_of(output: Output) -> str:
    """A display, a result or an error in words; empty if it has none."""
    if output["output_type"] == "error":
        return "\n".join(output["traceback"])
    said = output["data"].get("text/plain", "")
    return said if isinstance(said, str) else "".join(said)


def _as_kept(output: Output) -> Output:
    return {name: value for name, value in output.items() if name != "transient"}
