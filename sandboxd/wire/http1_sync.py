# Generated from sandboxd/wire/http1.py by scripts/unasync.py.
# Edit the source, then run the script.
"""One HTTP/1.1 client connection over a byte stream: daemon to guest, and SDK to daemon.

Sans-I/O parsing is h11's; this file only moves bytes. It knows no pool, no retry, no deadline: its
callers bound every wait. `http1_sync.py` is generated from it by `scripts/unasync.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import h11

from sandboxd.wire import plain1

_READ_BYTES = 65536
_MAX_HEAD_BYTES = 65536
_PIECE_BYTES = 1 << 18

Headers = list[tuple[bytes, bytes]]


class ConnectionLost(OSError):
    """The peer went away, or spoke something that is not HTTP/1.1.

    sent: whether any byte of the request may have reached the peer. False means it certainly had
    no effect.
    """

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.sent = sent


class Stream(Protocol):
    """What a connection needs of its transport."""

    def receive(self, max_bytes: int) -> bytes:
        """Some bytes; empty at the end of the stream. Raises OSError when it breaks."""
        ...

    def send(self, data: bytes) -> None:
        """Send all. Raises OSError when it breaks."""
        ...

    def close(self) -> None:
        """Close without ceremony; never raises."""
        ...


class Response:
    """The head of an answer, and its body as it comes."""

    __slots__ = ("_connection", "_done", "headers", "status")

    def __init__(self, connection: Connection, status: int, headers: Headers) -> None:
        self._connection = connection
        self._done = False
        self.status = status
        self.headers = headers

    def header(self, name: bytes, default: str = "") -> str:
        """The first header of that lower-case name, as text."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return default

    def next_chunk(self) -> bytes:
        """The next piece of the body; empty at its end. Raises ConnectionLost if it is cut."""
        while not self._done:
            event = self._connection.next_event()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._done = True
                self._connection.finish()
        return b""

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces, as they arrive. Raises ConnectionLost if it is cut."""
        while piece := self.next_chunk():
            yield piece

    def read(self, *, limit: int) -> bytes:
        """The whole body. Raises ConnectionLost if it is cut or longer than `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        while piece := self.next_chunk():
            size += len(piece)
            if size > limit:
                self._connection.close()
                raise ConnectionLost(f"the answer is longer than {limit} bytes", sent=True)
            pieces.append(piece)
        return b"".join(pieces)


class _Pieces:
    """A large body piece by piece: each wait is bounded, and an early answer to it is seen."""

    __slots__ = ("_body", "_start")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._start = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        start, self._start = self._start, self._start + _PIECE_BYTES
        if start >= len(self._body):
            raise StopIteration
        return self._body[start : self._start]


class Connection:
    """One request at a time; reusable while `idle`."""

    __slots__ = ("_h11", "_stream", "closed", "requests")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self.closed = False
        self.requests = 0

    @property
    def idle(self) -> bool:
        """Whether another request may be sent."""
        return not self.closed and self._h11.our_state is h11.IDLE

    def request(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | Iterator[bytes] | None = None,
    ) -> Response:
        """Send a request and wait for the head of its answer.

        headers: `host` among them, and for an iterated body `content-length` or
        `transfer-encoding: chunked`; the length of a body of bytes is added here.
        Raises ConnectionLost, and whatever an iterated body itself raises (the connection is then
        closed). Cancelled: the connection must be closed by the caller.
        """
        self.requests += 1
        pieces: Iterator[bytes] | None = None
        if isinstance(body, bytes):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
            if len(body) > _PIECE_BYTES:
                pieces = _Pieces(body)
        elif body is not None:
            pieces = body
        elif method in {"POST", "PUT", "PATCH"}:
            headers = [*headers, (b"content-length", b"0")]
        sent = False
        try:
            head = self._h11.send(h11.Request(method=method, target=target, headers=headers)) or b""
            if isinstance(body, bytes) and body and pieces is None:
                head += self._h11.send(h11.Data(data=body)) or b""
            if pieces is None:
                head += self._h11.send(h11.EndOfMessage()) or b""
            sent = True
            self._stream.send(head)
        except (OSError, h11.ProtocolError) as error:
            self.close()
            raise ConnectionLost(str(error) or type(error).__name__, sent=sent) from error
        if pieces is not None:
            self._send_pieces(pieces)
        return self._head()

    def exchange(
        self, method: str, target: str, headers: Headers, body: bytes | None = None, *, limit: int
    ) -> tuple[int, Headers, bytes]:
        """Send a request and read its whole answer: status, headers, body of at most `limit` bytes.

        Not for HEAD. Same as `request` and `read`, and cheaper where both are plain.
        Raises ConnectionLost. Cancelled: the connection must be closed by the caller.
        """
        if body is None and method in {"POST", "PUT", "PATCH"}:
            body = b""
        whole = plain1.write(method, target, headers, body)
        if whole is None or len(whole) > _PIECE_BYTES:
            response = self.request(method, target, headers, body)
            return response.status, response.headers, response.read(limit=limit)
        self.requests += 1
        try:
            self._stream.send(whole)
            head, early = self._receive_head()
            plain = plain1.read_head(head)
            if plain is None:
                return self._judge(
                    method, target, headers, body, head + b"\r\n\r\n" + early, limit=limit
                )
            return plain.status, plain.headers, self._receive_body(plain.length, early, limit)
        except OSError as error:
            self.close()
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(str(error) or type(error).__name__, sent=True) from error

    def _receive_head(self) -> tuple[bytes, bytes]:
        """What comes up to the first empty line, or what may be a head of another kind."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            piece = self._stream.receive(_READ_BYTES)
            if not piece or len(data) > _MAX_HEAD_BYTES:
                raise ConnectionLost("the peer closed the connection, or sent no head", sent=True)
            data += piece
        return data[:end], data[end + 4 :]

    def _receive_body(self, length: int, early: bytes, limit: int) -> bytes:
        if length > limit:
            raise ConnectionLost(f"the answer is longer than {limit} bytes", sent=True)
        pieces, size = [early], len(early)
        while size < length:
            piece = self._stream.receive(_READ_BYTES)
            if not piece:
                raise ConnectionLost("the answer was cut", sent=True)
            pieces.append(piece)
            size += len(piece)
        if size > length:
            raise ConnectionLost("the peer sent more than was asked for", sent=True)
        return b"".join(pieces)

    def _judge(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | None,
        early: bytes,
        *,
        limit: int,
    ) -> tuple[int, Headers, bytes]:
        """Have h11 read the answer to a request that has already been sent."""
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        self._h11.send(h11.Request(method=method, target=target, headers=headers))
        if body:
            self._h11.send(h11.Data(data=body))
        self._h11.send(h11.EndOfMessage())
        try:
            self._h11.receive_data(early)
        except h11.ProtocolError as error:
            raise ConnectionLost(str(error), sent=True) from error
        response = self._head()
        return response.status, response.headers, response.read(limit=limit)

    def _send_pieces(self, pieces: Iterator[bytes]) -> None:
        """Send a body piece by piece. What the pieces themselves raise passes through as it is."""
        try:
            for piece in pieces:
                if piece and not self._taken(h11.Data(data=piece)):
                    return
            self._taken(h11.EndOfMessage())
        except Exception:
            self.close()
            raise

    def _taken(self, event: h11.Data | h11.EndOfMessage) -> bool:
        """Send one event. False once the peer takes no more: it may have answered, so read."""
        data = self._h11.send(event) or b""
        try:
            self._stream.send(data)
        except OSError:
            self._h11.send_failed()
            return False
        return True

    def _head(self) -> Response:
        while True:
            event = self.next_event()
            if isinstance(event, h11.Response):
                return Response(self, event.status_code, list(event.headers))
            if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                return Response(self, 101, list(event.headers))

    def next_event(self) -> object:
        """The next event of the answer. Raises ConnectionLost when there can be none."""
        while True:
            try:
                event = self._h11.next_event()
                if event is h11.PAUSED:
                    raise ConnectionLost("the peer sent more than was asked for", sent=True)
                if event is h11.NEED_DATA:
                    self._h11.receive_data(self._stream.receive(_READ_BYTES))
                    continue
            except h11.RemoteProtocolError as error:
                self.close()
                raise ConnectionLost(str(error), sent=True) from error
            except OSError as error:
                self.close()
                if isinstance(error, ConnectionLost):
                    raise
                raise ConnectionLost(str(error), sent=True) from error
            if isinstance(event, h11.ConnectionClosed):
                self.close()
                raise ConnectionLost("the peer closed the connection", sent=True)
            return event

    def finish(self) -> None:
        """Make the connection ready for the next request, after an answer was read to its end."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()

    def detach(self) -> tuple[Stream, bytes]:
        """After 101: the bare stream, and what was read of it already. The connection is spent."""
        self.closed = True
        return self._stream, bytes(self._h11.trailing_data[0])

    def close(self) -> None:
        """Close the stream. Idempotent."""
        if not self.closed:
            self.closed = True
            self._stream.close()
