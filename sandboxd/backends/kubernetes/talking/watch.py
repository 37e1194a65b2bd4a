"""One watch of a list: the server's changes, line by line, until it ends the stream. Blocking."""

from __future__ import annotations

import json
from collections.abc import Iterator

import urllib3

from sandboxd.backends.kubernetes.talking.credentials import Access
from sandboxd.backends.kubernetes.talking.server import Json, Query, request, unavailable

# The server ends each watch by itself, so that one which is cut without a word is found out soon.
LENGTH_S = 60
_SILENCE_S = LENGTH_S + 15.0
_CHUNK = 1 << 16
_MAX_LINE = 16 << 20


class WatchStream:
    """One stream. `close` may be called from another thread than `changes`."""

    def __init__(self, access: Access, path: str, query: Query) -> None:
        self._access = access
        self._path = path
        self._query = {
            **query,
            "watch": True,
            "allowWatchBookmarks": True,
            "timeoutSeconds": LENGTH_S,
        }
        self._raw: urllib3.BaseHTTPResponse | None = None
        self._closed = False

    def changes(self) -> Iterator[Json]:
        """Each as `{"type": …, "object": …}`.

        Raises Refused, `backend_unavailable`.
        """
        raw = request(self._access, "GET", self._path, query=self._query, read_s=_SILENCE_S)
        self._raw = raw
        try:
            if not self._closed:
                yield from _lines(raw)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise unavailable(error) from error
        finally:
            raw.close()

    def close(self) -> None:
        """End the reading, wherever it is."""
        self._closed = True
        if isinstance(self._raw, urllib3.HTTPResponse):
            try:
                self._raw.shutdown()
            except (ValueError, RuntimeError, OSError):  # it is over already
                return


def _lines(raw: urllib3.BaseHTTPResponse) -> Iterator[Json]:
    rest = b""
    for chunk in raw.stream(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise ValueError("a change is too long")
        for line in lines:
            if line.strip():
                yield json.loads(line)
