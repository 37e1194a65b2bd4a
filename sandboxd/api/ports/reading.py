"""What a server inside answers to one request on a connection of its own, cut into its parts.

Pure, by llhttp. Each connection carries one answer, so what follows it is nobody's.
"""

from __future__ import annotations

import httptools

from sandboxd.wire.http1 import Headers

_MAX_HEAD_BYTES = 1 << 16
_MAX_INTERIM = 20


class NotHttp(ValueError):
    """It does not speak HTTP/1, or its head is too large."""


class AnswerReader:
    """Feed it, then look: `status` is 0 until the head is in.

    body: whether one follows the head. go_on: a `100 Continue` came. complete: the answer is whole.
    switched: it became another protocol (101); `rest` is what came of that already.
    """

    def __init__(self, *, method: str) -> None:
        self.status = 0
        self.headers: Headers = []
        self.go_on = False
        self.complete = False
        self.switched = False
        self.rest = b""
        self._head_only = method == "HEAD"
        self._until_end = False
        self._head_bytes = 0
        self._interim = 0
        self._coming: Headers = []
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        # Hand-written servers end lines with a bare line feed.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_data_after_close=True
        )

    def feed(self, data: bytes) -> bytes:
        """Take what came; returns what of it is body. Raises NotHttp."""
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            self.rest = data[switch.args[0] :]
        except httptools.HttpParserError as error:
            if not self.complete:
                raise NotHttp(str(error)) from error
        if not self.status and self._head_bytes > _MAX_HEAD_BYTES:
            raise NotHttp("its head is too large")
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def feed_end(self) -> bool:
        """Nothing more comes. Whether the answer is whole then."""
        self.complete = self.complete or (bool(self.status) and self._until_end)
        return self.complete

    @property
    def until_end(self) -> bool:
        """Whether the end of the connection is all that ends the body."""
        return self._until_end

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; behind the body they are trailers, which are not passed on."""
        if not self.status:
            self._coming.append((name.lower(), value.strip()))

    def on_headers_complete(self) -> None:
        """The head of an answer, or of an interim one."""
        if self.status:
            return
        status, headers = self._parser.get_status_code(), self._coming
        self._coming = []
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self.go_on = self.go_on or status == 100
            if self._interim > _MAX_INTERIM:
                raise NotHttp("it answers 1xx without end")
            return
        self.status, self.headers = status, headers
        names = dict(headers)
        chunked = names.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        bodiless = self._head_only or status in {101, 204, 304}
        self.switched = status == 101
        self.complete = bodiless
        self._until_end = not (bodiless or chunked or b"content-length" in names)

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        if self.status and not self.complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The end of an answer, or of an interim one."""
        if self.status:
            self.complete = True
