"""How many values a JSON text has, before it is parsed."""

from __future__ import annotations


def has_more_values(text: bytes, most: int) -> bool:
    """Whether it has more values than that. Linear, parses nothing; what is no JSON at all is left
    to its parser.
    """
    if _separators(text) <= most:
        return False
    # Some of them may stand in texts: look outside of these alone.
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * most:
        return True
    return sum(map(_separators, bare.split(b'"')[::2])) > most


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
