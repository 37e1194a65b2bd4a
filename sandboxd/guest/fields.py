"""Reading JSON of a peer that is not trusted: every field has a type and a bound."""

from __future__ import annotations

import binascii
import json
from math import isfinite
from typing import Any

from sandboxd.guest.facts import is_encodable, is_plain
from sandboxd.guest.line import GuestLost

_MAX_TEXT = 1 << 16
_MAX_COUNT = 1 << 63


def nonsense(field: str) -> GuestLost:
    """That a field is missing or is not what the protocol says."""
    return GuestLost(f"the guest's `{field}` is not as the protocol has it", sent=True)


def loads(data: bytes) -> Fields:
    """The fields of a JSON object. Raises GuestLost if it is none."""
    try:
        return Fields(json.loads(data), "answer")
    except (ValueError, RecursionError):
        raise GuestLost("the guest's answer is not JSON", sent=True) from None


class Fields:
    """A JSON object, asked field by field."""

    __slots__ = ("_said",)

    def __init__(self, said: Any, name: str) -> None:
        if not isinstance(said, dict):
            raise nonsense(name)
        self._said: dict[str, Any] = said

    def __contains__(self, name: str) -> bool:
        return name in self._said

    def text(self, name: str, *, limit: int = _MAX_TEXT) -> str:
        """A string of at most `limit` characters."""
        value = self._said.get(name)
        if not isinstance(value, str) or len(value) > limit or not is_encodable(value):
            raise nonsense(name)
        return value

    def optional_text(self, name: str, *, limit: int = _MAX_TEXT) -> str | None:
        """A string, or None where it is null or absent."""
        return None if self._said.get(name) is None else self.text(name, limit=limit)

    def count(self, name: str, *, default: int | None = None) -> int:
        """A whole number from 0 to 2**63. default: what an absent one means."""
        value = self._said.get(name, default)
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise nonsense(name)
        return value

    def optional_count(self, name: str) -> int | None:
        """A whole number from 0 on, or None where it is null or absent."""
        return None if self._said.get(name) is None else self.count(name)

    def counts(self, name: str) -> list[int]:
        """A short list of whole numbers."""
        value = self._said.get(name)
        if not isinstance(value, list) or len(value) > 64:
            raise nonsense(name)
        return [Fields({name: item}, name).count(name) for item in value]

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._said.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise nonsense(name)
        if not -_MAX_COUNT <= value <= _MAX_COUNT or not isfinite(value):
            raise nonsense(name)
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None where it is null or absent."""
        return None if self._said.get(name) is None else self.number(name)

    def seconds(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self.number(name)
        if value < 0:
            raise nonsense(name)
        return value

    def optional_seconds(self, name: str) -> float | None:
        """The same, or None where it is null or absent."""
        return None if self._said.get(name) is None else self.seconds(name)

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self._said.get(name, False)
        if not isinstance(value, bool):
            raise nonsense(name)
        return value

    def base64(self, name: str) -> bytes:
        """Bytes that came as base64; null or absent is empty."""
        value = self._said.get(name)
        if not value:
            return b""
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except (ValueError, TypeError):
            raise nonsense(name) from None

    def plain(self, name: str) -> Any:
        """Small JSON of any kind, fit to be passed on; null where it is absent."""
        value = self._said.get(name)
        if not is_plain(value):
            raise nonsense(name)
        return value

    def names(self, name: str) -> list[str]:
        """A list of strings."""
        value = self._said.get(name)
        if not isinstance(value, list):
            raise nonsense(name)
        return [Fields({name: item}, name).text(name) for item in value]

    def texts(self, name: str) -> dict[str, str]:
        """Strings of any length by their names."""
        value = self._said.get(name)
        if not isinstance(value, dict):
            raise nonsense(name)
        if not all(isinstance(each, str) and is_encodable(each) for each in value.values()):
            raise nonsense(name)
        return dict(value)

    def inner(self, name: str) -> Fields:
        """An object within."""
        return Fields(self._said.get(name), name)

    def each(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self._said.get(name)
        if not isinstance(value, list):
            raise nonsense(name)
        return [Fields(item, name) for item in value]
