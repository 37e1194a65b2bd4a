"""Protobuf's wire format, for the few messages that are known here. Pure.

A message is read as its fields by number, in their order, whatever they are; unknown ones stay
unread, as the format wants it.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


class Fields:
    """What a message says. Reading a field that is of another kind raises ValueError."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError for what is no message."""
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def number(self, number: int) -> int:
        """An unsigned integer or a boolean; 0 where it is not said."""
        value = self._values.get(number, [0])[-1]
        if isinstance(value, bytes):
            raise _wrong(number)
        return value

    def data(self, number: int) -> bytes:
        """Bytes; none where they are not said."""
        return self.every(number)[-1] if number in self else b""

    def text(self, number: int) -> str:
        """Text; empty where it is not said."""
        return _text(self.data(number))

    def every(self, number: int) -> list[bytes]:
        """All values of a field that may repeat."""
        values = self._values.get(number, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) != len(values):
            raise _wrong(number)
        return found

    def texts(self, number: int) -> list[str]:
        """All texts of a field that may repeat."""
        return [_text(value) for value in self.every(number)]

    def inner(self, number: int) -> Fields:
        """A message within; an empty one where it is not said."""
        return Fields(self.data(number))

    def mapping(self, number: int) -> dict[str, str]:
        """A map of texts: messages of a key (1) and a value (2)."""
        entries = [Fields(value) for value in self.every(number)]
        return {entry.text(1): entry.text(2) for entry in entries}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise _wrong(number)
        if at + size > len(data):
            msg = "the message is cut short"
            raise ValueError(msg)
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    msg = "a number in the message does not end"
    raise ValueError(msg)


def _text(data: bytes) -> str:
    return data.decode()  # UnicodeDecodeError is a ValueError


def _wrong(number: int) -> ValueError:
    return ValueError(f"field {number} of the message is of another kind")


def uint(number: int, value: int) -> bytes:
    """A field with an unsigned integer or a boolean."""
    return _encoded(number << 3 | _VARINT) + _encoded(value)


def sint(number: int, value: int) -> bytes:
    """A field with a signed integer (`sint32`, `sint64`)."""
    return uint(number, value * 2 if value >= 0 else -value * 2 - 1)


def blob(number: int, value: bytes | str) -> bytes:
    """A field with bytes, text, or a message within."""
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | _BYTES) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
