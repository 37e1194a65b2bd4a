"""The frames of a two-way stream after an `Upgrade`: kind, length, payload.

Pure: bytes in, values out. Knows no connection and no JSON; who reads the payloads is at both ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

MAX_PAYLOAD_BYTES = 1 << 20

_HEAD = Struct(">BI")
_PIECE = Struct(">QQ")

PIECE_HEAD_BYTES = _PIECE.size


class FrameKind(IntEnum):
    """The first byte of a frame."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    CONTROL = 3  # a JSON object
    SEND = 4  # a message for a kernel
    MESSAGE = 5  # a message of a kernel


class Frame(NamedTuple):
    """One frame, its payload not yet looked at."""

    kind: FrameKind
    payload: bytes


class FrameError(ValueError):
    """The peer sent what is no frame, or one over the bound. The stream cannot go on."""


def encode(kind: FrameKind, payload: bytes = b"", *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """A frame as it travels. Raises FrameError if the payload is over the bound."""
    if len(payload) > limit:
        raise FrameError(f"a payload of {len(payload)} bytes is over {limit}")
    return _HEAD.pack(kind, len(payload)) + payload


def encode_piece(kind: FrameKind, *, seq: int, offset: int, data: bytes) -> bytes:
    """A piece of output: its number, its byte offset in that stream, its bytes."""
    return encode(kind, _PIECE.pack(seq, offset) + data)


def split_piece(payload: bytes) -> tuple[int, int, bytes]:
    """The number, offset and bytes of a piece of output. Raises FrameError if it is too short."""
    if len(payload) < PIECE_HEAD_BYTES:
        raise FrameError(f"a piece of output of {len(payload)} bytes has no head")
    seq, offset = _PIECE.unpack_from(payload)
    return seq, offset, payload[PIECE_HEAD_BYTES:]


class FrameDecoder:
    """Cuts a byte stream into frames, however it was split on its way.

    Holds at most one unfinished frame of at most `limit` payload bytes besides what it was fed.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, *, limit: int = MAX_PAYLOAD_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    @property
    def pending(self) -> bool:
        """Whether the stream, if it ended now, would end inside a frame."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order. Raises FrameError at the first bad head."""
        self._buffer += data
        return list(self._complete())

    def _complete(self) -> Iterator[Frame]:
        start = 0
        try:
            while len(self._buffer) - start >= _HEAD.size:
                number, length = _HEAD.unpack_from(self._buffer, start)
                kind = self._checked(number, length)
                end = start + _HEAD.size + length
                if len(self._buffer) < end:
                    break
                yield Frame(kind, bytes(memoryview(self._buffer)[start + _HEAD.size : end]))
                start = end
        finally:
            del self._buffer[:start]

    def _checked(self, number: int, length: int) -> FrameKind:
        if length > self._limit:
            raise FrameError(f"a frame of {length} bytes is over {self._limit}")
        try:
            return FrameKind(number)
        except ValueError:
            raise FrameError(f"there is no frame of kind {number}") from None
