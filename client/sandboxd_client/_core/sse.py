"""Server-sent events out of chunks, however the chunks fall."""

from __future__ import annotations

from dataclasses import dataclass

# An event of ours has a few hundred bytes; beyond this it is not our daemon.
_LONGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerSent:
    """One block. Fields that it does not have are empty; a block may have an id alone."""

    id: str = ""
    event: str = ""
    data: str = ""


class BlockSplitter:
    """Feed chunks, get whole blocks."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> list[ServerSent]:
        """The blocks that this chunk completes. Raises ValueError for one that never ends."""
        *blocks, self._held = (self._held + chunk).split(b"\n\n")
        if len(self._held) > _LONGEST_BYTES:
            raise ValueError(f"an event is longer than {_LONGEST_BYTES} bytes")
        return [_parsed(block.decode("utf-8")) for block in blocks]


def _parsed(block: str) -> ServerSent:
    fields = {"id": "", "event": "", "data": ""}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        if name in fields:
            fields[name] = value.removeprefix(" ")
    return ServerSent(**fields)
