"""HTTP/1.1 as programs inside speak it to us, one connection: requests read, answers written.

h11 parses. What could be read in two ways is refused, and nothing of a head is passed on that
concerns one hop alone. Knows no rules and no addresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

import anyio
import h11
from anyio.abc import ByteStream

from sandboxd.egress.passage import BROKEN
from sandboxd.wire.http1 import AsyncConnection, AsyncResponse, ConnectionLost, Headers
from sandboxd.wire.streams import AnyioStream

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
_MAX_REASON = 200
_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate",
        b"proxy-authorization", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip


class Left(Exception):
    """Who was inside went away, or spoke something that is no HTTP."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The head of a request. body: whether one follows; length None: in chunks."""

    method: str
    target: str
    headers: Headers
    body: bool
    length: int | None


class HttpInside:
    """See the module. Raises Left from every method once there is nobody to speak with."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._whole = anyio.Event()  # the present request has come to its end

    @property
    def untouched(self) -> bool:
        """Whether the present request has had nothing of an answer yet."""
        return self._h11.our_state is h11.SEND_RESPONSE

    async def next_request(self, *, within_s: float) -> Asked | None:
        """The next head, whole within that time; None when the peer is done. What is no request is
        answered, and raises Left.
        """
        try:
            with anyio.fail_after(within_s):
                event = await self._next_event()
        except TimeoutError:
            await self._farewell(408, "no whole request head came in time")
            raise Left from None
        except h11.RemoteProtocolError as error:
            await self._farewell(error.error_status_hint, "this is no HTTP request")
            raise Left from error
        if not isinstance(event, h11.Request):
            return None
        lengths = [v for k, v in event.headers if k == b"content-length"]
        chunked = any(k == b"transfer-encoding" for k, _ in event.headers)
        if lengths and chunked:
            await self._farewell(400, "a request with two lengths")
            raise Left
        if sum(len(name) + len(value) for name, value in event.headers) > _MAX_HEAD_BYTES:
            await self._farewell(431, "the request's head is too large")
            raise Left
        has_body = chunked or (bool(lengths) and int(lengths[0]) > 0)
        self._whole = anyio.Event()
        if not has_body:
            self._h11.next_event()  # its end, which is here already
            self._whole.set()
        return Asked(
            method=event.method.decode("ascii"),
            target=event.target.decode("ascii"),
            headers=list(event.headers),
            body=has_body,
            length=int(lengths[0]) if lengths else None,
        )

    async def refuse(self, status: int, text: str) -> bool:
        """Answer with one line of text. False: no other request can come on this connection."""
        line = (text.replace("\r", " ").replace("\n", " ") + "\n").encode("ascii", "replace")
        headers: Headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(line)),
            (b"x-sandboxd-refused", b"1"),
        ]
        # As the reason too: it is all that most programs show of a CONNECT that was refused.
        reason = line.strip()[:_MAX_REASON]
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))
        await self._send(h11.Data(data=line))
        await self._send(h11.EndOfMessage())
        return self.next_cycle()

    async def switch(self) -> bytes:
        """Answer `CONNECT` with 200; what has come behind it already. The stream is bare then."""
        established = h11.Response(status_code=200, headers=[], reason=b"Connection established")
        await self._send(established)
        return bytes(self._h11.trailing_data[0])

    async def body(self) -> AsyncIterator[bytes]:
        """The pieces of the request's body."""
        while True:
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                event = await self._next_event()
            except h11.RemoteProtocolError as error:
                raise Left from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._whole.set()
                return
            else:
                raise Left

    async def answer(self, response: AsyncResponse) -> None:
        """Pass an answer on as it comes. Raises ConnectionLost if it is cut: then so is ours."""
        headers = without_hop(response.headers)
        await self._send(h11.Response(status_code=response.status, headers=headers))
        async for piece in response.chunks():
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def until_gone(self) -> None:
        """Return once the peer has hung up on a request that it sent in full. What it sends behind
        it is kept; behind much of that nobody looks any more.
        """
        await self._whole.wait()
        ahead = 0
        while ahead < _READ_BYTES:
            try:
                data = await self._stream.receive(_READ_BYTES)
            except (anyio.EndOfStream, *BROKEN):
                return
            ahead += len(data)
            self._h11.receive_data(data)
        await anyio.sleep_forever()

    def next_cycle(self) -> bool:
        """Get ready for another request; False where there can be none on this connection."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            return True
        return False

    async def _next_event(self) -> object:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                data = b""
            except BROKEN as error:
                raise Left from error
            self._h11.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        try:
            data = self._h11.send(event)
            if data:
                await self._stream.send(data)
        except (*BROKEN, h11.LocalProtocolError) as error:
            raise Left from error

    async def _farewell(self, status: int, text: str) -> None:
        if self._h11.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self.refuse(status, text)


def without_hop(headers: Headers, *, but: Iterable[bytes] = ()) -> Headers:
    """What of a head concerns both ends; also without the names of `but`."""
    gone = _HOP.union(but)
    for name, value in headers:
        if name == b"connection":
            gone |= {each.strip().lower() for each in value.split(b",")} - {b"content-length"}
    return [(name, value) for name, value in headers if name not in gone]


async def relay(
    inside: HttpInside,
    asked: Asked,
    outside: ByteStream,
    *,
    authority: str,
    path: str,
    secrets: Headers,
) -> bool:
    """Ask outside what was asked inside, and pass the answer on. False: that was the last one.

    secrets: headers that go out with it, in place of any of the same name. Raises Left, and
    ConnectionLost where the server outside breaks off.
    """
    mine = {b"host", *(name for name, _ in secrets)}
    headers = [(b"host", authority.encode("ascii")), *without_hop(asked.headers, but=mine)]
    headers += [*secrets, (b"connection", b"close")]
    if asked.body and asked.length is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif not asked.body:
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    connection = AsyncConnection(AnyioStream(outside))
    body = inside.body() if asked.body else None

    async def exchange() -> None:
        response = await connection.request(asked.method, path, headers, body)
        if response.status == 101:  # nobody asked for it
            raise ConnectionLost("the server changed the protocol", sent=True)
        await inside.answer(response)

    await _while_there(inside, exchange)
    return inside.next_cycle()


async def _while_there(inside: HttpInside, act: Callable[[], Awaitable[None]]) -> None:
    """Give an exchange up when who asked hangs up: a model's long answer costs its owner money."""
    failure: Exception | None = Left()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await inside.until_gone()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch, name="way-out-watch")
        try:
            await act()
            failure = None
        except (Left, ConnectionLost) as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
