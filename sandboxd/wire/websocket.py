"""WebSocket messages (RFC 6455) as bytes, for a client: what it sends, and what it is sent.

Pure: bytes in, values out. Knows no connection and no extensions. The daemon's own side is its HTTP
server's.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from enum import IntEnum
from hashlib import sha1
from struct import Struct
from typing import NamedTuple

MAX_MESSAGE_BYTES = (1 << 20) + 1

_MAX_CONTROL_BYTES = 125
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SHORT, _LONG = Struct(">H"), Struct(">Q")
_FIN, _MASKED = 0x80, 0x80
_XOR = [bytes(byte ^ key for byte in range(256)) for key in range(256)]


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """Those codes that a client must know. 4000 and more are the daemon's own."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NO_CODE = 1005
    TOO_LARGE = 1009


class Message(NamedTuple):
    """A whole message: its opcode is BINARY, TEXT, PING, PONG or CLOSE."""

    opcode: Opcode
    payload: bytes


class MessageError(ValueError):
    """The peer broke the protocol, or a bound. The connection cannot go on."""


def new_key() -> bytes:
    """A `Sec-WebSocket-Key`."""
    return b64encode(os.urandom(16))


def accept_of(key: bytes) -> str:
    """The `Sec-WebSocket-Accept` that answers a key."""
    digest = sha1(key + _MAGIC, usedforsecurity=False).digest()
    return b64encode(digest).decode()


def encode(opcode: Opcode, payload: bytes = b"", *, mask: bytes | None = None) -> bytes:
    """A message in one frame, masked as a client's must be. mask: 4 bytes, else random ones.

    Raises MessageError for a control message of more than 125 bytes.
    """
    size = len(payload)
    if opcode >= Opcode.CLOSE and size > _MAX_CONTROL_BYTES:
        raise MessageError(f"a control message of {size} bytes is over {_MAX_CONTROL_BYTES}")
    mask = os.urandom(4) if mask is None else mask
    if size <= _MAX_CONTROL_BYTES:
        head = bytes((_FIN | opcode, _MASKED | size))
    elif size <= 0xFFFF:
        head = bytes((_FIN | opcode, _MASKED | 126)) + _SHORT.pack(size)
    else:
        head = bytes((_FIN | opcode, _MASKED | 127)) + _LONG.pack(size)
    return head + mask + masked(payload, mask)


def encode_close(code: int, reason: str = "") -> bytes:
    """A close message; a reason that is too long is cut."""
    room = _MAX_CONTROL_BYTES - _SHORT.size
    text = reason.encode()[:room].decode(errors="ignore").encode()
    return encode(Opcode.CLOSE, _SHORT.pack(code) + text)


def read_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close message; 1005 where it has none. Raises MessageError."""
    if not payload:
        return CloseCode.NO_CODE, ""
    if len(payload) < _SHORT.size:
        raise MessageError("a close message of one byte has no code")
    return _SHORT.unpack_from(payload)[0], payload[_SHORT.size :].decode(errors="replace")


def masked(data: bytes, mask: bytes) -> bytes:
    """Data with the mask laid over it, or taken off."""
    mixed = bytearray(data)
    for place, key in enumerate(mask):  # a table for a quarter each: no loop over bytes
        mixed[place::4] = mixed[place::4].translate(_XOR[key])
    return bytes(mixed)


class MessageDecoder:
    """Cuts what a server sends into messages, however it was split on its way.

    Holds at most one unfinished message of at most `limit` bytes besides what it was fed. Control
    messages come out in their place, also from between the frames of another.
    """

    __slots__ = ("_buffer", "_fragments", "_limit", "_opcode")

    def __init__(self, *, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._fragments = bytearray()
        self._opcode: Opcode | None = None  # of the message whose fragments are coming

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes, in order. Raises MessageError at a bad frame."""
        self._buffer += data
        return list(self._complete())

    def _complete(self) -> Iterator[Message]:
        start = 0
        try:
            while (frame := self._frame_at(start)) is not None:
                first, begin, end = frame
                payload, start = bytes(self._buffer[begin:end]), end
                message = self._add(Opcode(first & 0x0F), payload, final=bool(first & _FIN))
                if message is not None:
                    yield message
        finally:
            del self._buffer[:start]

    def _frame_at(self, start: int) -> tuple[int, int, int] | None:
        """First byte, and begin and end of the payload; None while it is not all there."""
        buffer, have = self._buffer, len(self._buffer) - start
        if have < 2:
            return None
        first, second = buffer[start], buffer[start + 1]
        self._check_head(first, second)
        begin, size = start + 2, second
        if second >= 126:
            length = _SHORT if second == 126 else _LONG
            if have < 2 + length.size:
                return None
            (size,) = length.unpack_from(buffer, begin)
            begin += length.size
        if size + len(self._fragments) > self._limit:
            raise MessageError(f"a message is over {self._limit} bytes")
        return None if len(buffer) < begin + size else (first, begin, begin + size)

    def _check_head(self, first: int, second: int) -> None:
        number = first & 0x0F
        if first & 0x70:
            raise MessageError("a frame uses an extension that was not agreed on")
        if second & _MASKED:
            raise MessageError("a server masks nothing")
        if number not in Opcode.__members__.values():
            raise MessageError(f"there is no frame of kind {number}")
        if number >= Opcode.CLOSE and (not first & _FIN or second > _MAX_CONTROL_BYTES):
            raise MessageError("a control message is short and in one frame")
        if number < Opcode.CLOSE and (number == Opcode.CONTINUATION) is (self._opcode is None):
            raise MessageError("a fragment stands where none may")

    def _add(self, opcode: Opcode, payload: bytes, *, final: bool) -> Message | None:
        if opcode >= Opcode.CLOSE:
            return Message(opcode, payload)
        begun = self._opcode if opcode is Opcode.CONTINUATION else opcode
        assert begun is not None  # checked with the head
        if final and not self._fragments:
            self._opcode = None
            return Message(begun, payload)
        self._fragments += payload
        self._opcode = begun
        if not final:
            return None
        whole = bytes(self._fragments)
        self._fragments.clear()
        self._opcode = None
        return Message(begun, whole)
