"""What an untrusted peer says that may be passed on as it is: small, shallow, and real JSON."""

from __future__ import annotations

from math import isfinite
from typing import Any

_MAX_ITEMS = 64
_MAX_CHARS = 4096
_MAX_DEPTH = 4


def is_encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON lets half a surrogate pair through."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_plain(value: Any, *, depth: int = _MAX_DEPTH) -> bool:
    """Whether a JSON value can be put into an answer of ours: bounded, finite, encodable."""
    match value:
        case None | bool():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 63
        case float():
            return isfinite(value)
        case str():
            return len(value) <= _MAX_CHARS and is_encodable(value)
        case list():
            return _are_plain(value, depth)
        case dict():
            return _are_plain([*value.keys(), *value.values()], depth)
        case _:
            return False


def _are_plain(values: list[Any], depth: int) -> bool:
    if depth == 0 or len(values) > 2 * _MAX_ITEMS:
        return False
    return all(is_plain(value, depth=depth - 1) for value in values)
