"""Envelopes of a ConnectRPC stream: a byte of flags, four of length, a message. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sandboxd.compat.connect.faults import Fault

MAX_MESSAGE_BYTES = 16 << 20
STREAM_TYPE = "application/connect+proto"
UNARY_TYPE = "application/proto"

_HEAD_BYTES = 5
_COMPRESSED, _LAST = 1, 2


class Envelopes:
    """Takes a stream in whatever pieces it comes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The messages that are whole by now. Raises ValueError for what is none of ours."""
        self._rest += piece
        while len(self._rest) >= _HEAD_BYTES:
            flags, size = self._rest[0], int.from_bytes(self._rest[1:_HEAD_BYTES], "big")
            if flags & _COMPRESSED:
                msg = "compressed messages are not taken here: send identity"
                raise ValueError(msg)
            if size > MAX_MESSAGE_BYTES:
                msg = f"a message is limited to {MAX_MESSAGE_BYTES} bytes"
                raise ValueError(msg)
            if len(self._rest) < _HEAD_BYTES + size:
                return
            message = bytes(self._rest[_HEAD_BYTES : _HEAD_BYTES + size])
            del self._rest[: _HEAD_BYTES + size]
            if not flags & _LAST:
                yield message

    @property
    def whole(self) -> bool:
        """Whether nothing of a message is missing."""
        return not self._rest


def envelope(message: bytes) -> bytes:
    """One message on its way out."""
    return _framed(0, message)


def last(fault: Fault | None = None) -> bytes:
    """The end of a stream: with an error, or without one."""
    told = {} if fault is None else {"error": fault.told()}
    return _framed(_LAST, json.dumps(told).encode())


def _framed(flags: int, message: bytes) -> bytes:
    return bytes([flags]) + len(message).to_bytes(4, "big") + message
