"""HTTP/1.1 on the guest's side of a byte stream. Knows nothing of what requests mean."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import h11
from anyio.abc import ByteStream

from sandboxd.backends.fake.guest.refusals import Refusal

_READ_BYTES = 65536
_MAX_JSON_BYTES = 32 << 20

Headers = list[tuple[str, str]]
Upgraded = Callable[[ByteStream, bytes], Awaitable[None]]


class Body(AsyncIterator[bytes]):
    """The pieces of a request's body. May be left before its end, unlike a generator."""

    def __init__(self, next_piece: Callable[[], Awaitable[bytes | None]]) -> None:
        self._next_piece = next_piece

    async def __anext__(self) -> bytes:
        """The next piece."""
        piece = await self._next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `parts`: the path without `/v1`, cut at slashes and then decoded."""

    method: str
    parts: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]
    body: Body

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises Refusal."""
        pieces, size = [], 0
        async for piece in self.body:
            size += len(piece)
            if size > _MAX_JSON_BYTES:
                raise Refusal("too_large", f"the body is over {_MAX_JSON_BYTES} bytes")
            pieces.append(piece)
        try:
            said = json.loads(b"".join(pieces))
        except ValueError as error:
            raise Refusal("bad_request", "the body is not JSON") from error
        if not isinstance(said, dict):
            raise Refusal("bad_request", "the body is not an object")
        return said

    def number(self, name: str, default: float) -> float:
        """A number of the query. Raises Refusal."""
        try:
            return float(self.query.get(name, default))
        except ValueError as error:
            raise Refusal("bad_request", f"`{name}` is not a number") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. A body that is iterated goes out chunked unless `headers` give its length.

    upgraded: takes the bare stream and the bytes that came early, after a 101. lost: called
    instead if its asker is gone by then.
    """

    status: int = 200
    body: bytes | Iterator[bytes] = b""
    headers: Headers = field(default_factory=list)
    upgraded: Upgraded | None = None
    lost: Callable[[], None] = lambda: None


def json_reply(said: object, *, status: int = 200) -> Reply:
    """An answer in JSON."""
    return Reply(status, json.dumps(said).encode(), [("content-type", "application/json")])


Answerer = Callable[[Request], Awaitable[Reply]]


async def serve(stream: ByteStream, answer: Answerer) -> None:
    """Answer the requests of one connection until it ends. Closes the stream."""
    try:
        await _Connection(stream).serve(answer)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError):
        pass  # the daemon went away: what it began goes on
    finally:
        await anyio.aclose_forcefully(stream)


class _Connection:
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER)

    async def serve(self, answer: Answerer) -> None:
        while True:
            event = await self._next()
            if not isinstance(event, h11.Request):
                return
            body = Body(self._next_of_body)
            reply = await self._answered(answer, _request(event, body))
            if reply.upgraded is not None:
                await self._upgrade(reply, reply.upgraded)
                return
            await self._send_reply(reply)
            # What is left of a body that was refused half-way must be read before the next request.
            async for _ in body:
                pass
            if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                return
            self._h11.start_next_cycle()

    async def _answered(self, answer: Answerer, request: Request) -> Reply:
        try:
            return await answer(request)
        except Refusal as refusal:
            said = {"code": refusal.code, "detail": refusal.detail, "details": refusal.details}
            return json_reply(said, status=refusal.status)

    async def _next(self) -> object:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                data = b""
            self._h11.receive_data(data)

    async def _next_of_body(self) -> bytes | None:
        while self._h11.their_state is h11.SEND_BODY:
            event = await self._next()
            if isinstance(event, h11.Data):
                return bytes(event.data)
        return None

    async def _send_reply(self, reply: Reply) -> None:
        headers: Headers = list(reply.headers)
        if isinstance(reply.body, bytes):
            headers.append(("content-length", str(len(reply.body))))
        elif not any(name == "content-length" for name, _ in headers):
            headers.append(("transfer-encoding", "chunked"))
        head = self._h11.send(h11.Response(status_code=reply.status, headers=headers)) or b""
        if isinstance(reply.body, bytes):
            await self._stream.send(head + (self._h11.send(h11.Data(data=reply.body)) or b""))
        else:
            await self._stream.send(head)
            for piece in reply.body:
                await self._stream.send(self._h11.send(h11.Data(data=piece)) or b"")
        await self._stream.send(self._h11.send(h11.EndOfMessage()) or b"")

    async def _upgrade(self, reply: Reply, upgraded: Upgraded) -> None:
        switching = h11.InformationalResponse(
            status_code=101, headers=[("connection", "Upgrade"), *reply.headers]
        )
        try:
            await self._stream.send(self._h11.send(switching) or b"")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            reply.lost()
            raise
        await upgraded(self._stream, bytes(self._h11.trailing_data[0]))


def _request(event: h11.Request, body: Body) -> Request:
    url = urlsplit(event.target.decode("ascii"))
    found = parse_qs(url.query, keep_blank_values=True)
    return Request(
        method=event.method.decode(),
        parts=tuple(unquote(part) for part in url.path.split("/")[2:]),
        query={name: values[-1] for name, values in found.items()},
        headers={k.decode(): v.decode("latin-1") for k, v in event.headers},
        body=body,
    )
