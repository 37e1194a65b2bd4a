"""The plainest HTTP/1.1 exchange, written and read without a state machine. Pure.

A short body out, an answer with a content-length back: nearly every call, at a fraction of the
CPU. Whatever is not exactly of that shape is left to h11, which judges it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[!-~]*")
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# With these, where a body ends and whether the connection lives on is a longer story.
_LONGER_STORY = {b"connection", b"transfer-encoding", b"upgrade"}
_NO_BODY = {204, 205, 304}


class PlainHead(NamedTuple):
    """The head of an answer whose body is `length` bytes."""

    status: int
    headers: Headers
    length: int


def write(method: str, target: str, headers: Headers, body: bytes | None) -> bytes | None:
    """A whole request; None if anything in it is not fit to stand in one."""
    where = target.encode("ascii", "replace")
    if _TARGET.fullmatch(where) is None or not target.isascii():
        return None
    lines = [method.encode("ascii") + b" " + where + b" HTTP/1.1"]
    for name, value in headers:
        if name in _LONGER_STORY or not (_TOKEN.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        lines.append(name + b": " + value)
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def read_head(head: bytes) -> PlainHead | None:
    """What stood before the first empty line of an answer; None if h11 must judge it."""
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    headers: Headers = []
    length: bytes | None = None
    for line in lines:
        name, colon, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if not (colon and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        if name in _LONGER_STORY or (name == b"content-length" and length is not None):
            return None
        if name == b"content-length":
            length = value
        headers.append((name, value))
    if status is None or length is None or _LENGTH.fullmatch(length) is None:
        return None
    number = int(status[1])
    return None if number in _NO_BODY else PlainHead(number, headers, int(length))
