"""The one file of an upload, streamed out of `multipart/form-data`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^;\s]{1,200}))', re.IGNORECASE)
_MAX_HEAD_BYTES = 16 << 10


def boundary_of(content_type: str) -> bytes:
    """What stands between the parts. Raises ValueError for a body of another kind."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        msg = "send multipart/form-data with one part, `file`"
        raise ValueError(msg)
    return (found[1] or found[2]).encode()


async def only_file(pieces: AsyncIterator[bytes], boundary: bytes) -> AsyncGenerator[bytes, None]:
    """The bytes of the first part, which must be named `file`; what comes after it is read and
    dropped. Raises ValueError for a body that is cut, or of another form.
    """
    mark = b"\r\n--" + boundary
    kept = await _behind_the_head(pieces, mark)
    while (end := kept.find(mark)) < 0:
        safe = len(kept) - len(mark)
        if safe > 0:
            yield bytes(kept[:safe])
            del kept[:safe]
        piece = await anext(pieces, b"")
        if not piece:
            msg = "the body ends before its file does"
            raise ValueError(msg)
        kept += piece
    if end:
        yield bytes(kept[:end])
    async for _ in pieces:  # the end of the form
        pass


async def _behind_the_head(pieces: AsyncIterator[bytes], mark: bytes) -> bytearray:
    """What has come of the first part's content, once its head is in."""
    kept = bytearray(b"\r\n")  # so that the first boundary looks like the others
    while (head_end := kept.find(b"\r\n\r\n", len(mark))) < 0:
        piece = await anext(pieces, b"")
        if not piece or len(kept) > _MAX_HEAD_BYTES:
            break
        kept += piece
    if head_end < 0 or not kept.startswith(mark):
        msg = "the body does not begin with a part of multipart/form-data"
        raise ValueError(msg)
    if b'name="file"' not in kept[:head_end]:
        msg = "the part must be named `file`"
        raise ValueError(msg)
    del kept[: head_end + 4]
    return kept
