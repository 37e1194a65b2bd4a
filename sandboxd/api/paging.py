"""Lists in pages, newest first. A cursor holds the key of the last item shown, so that a page
begins where the one before ended, whatever came or went in between.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from fastapi import Query

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=8192)]
Key = tuple[float, str]
T = TypeVar("T")


def page(
    found: Iterable[T], *, key: Callable[[T], Key], limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """At most `limit` items with the greatest keys below the cursor, and the cursor to go on from.

    Raises `bad_request` for a cursor that is none of ours.
    """
    keyed = sorted(((key(item), item) for item in found), key=lambda pair: pair[0], reverse=True)
    if cursor is not None:
        before = _read(cursor)
        keyed = [pair for pair in keyed if pair[0] < before]
    shown = keyed[:limit]
    more = len(keyed) > limit
    return [item for _, item in shown], _write(shown[-1][0]) if more else None


def _write(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read(cursor: str) -> Key:
    try:
        at, name = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return float(at), str(name)
    except (ValueError, TypeError, binascii.Error):
        raise SandboxdError(
            ErrorCode.BAD_REQUEST, "cursor: give a next_cursor of this list, unchanged"
        ) from None
