"""A server that goes wrong on purpose: answers by script, half answers, cuts, keeps silent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream

from sandboxd_client import AsyncSandboxd


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived; `line` counts the connections."""

    line: int
    method: str
    path: str
    query: Mapping[str, list[str]]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as JSON."""
        told: dict[str, Any] = json.loads(self.body)
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What to do with a request: the bytes to answer with, then whether the line is cut.

    after_s: how long to wait before that. hang: answer nothing until the caller is gone.
    """

    answer: bytes = b""
    cut: bool = False
    after_s: float = 0.0
    hang: bool = False


def answer(status: int, body: Mapping[str, Any] | None = None, *, cut: bool = False) -> Act:
    """A whole answer in JSON; cut: the line is closed after it, without a word beforehand."""
    kind = b"application/problem+json" if status >= 400 else b"application/json"
    return Act(answer=_http(status, json.dumps(body or {}).encode(), kind), cut=cut)


def problem(code: str, status: int, **members: Any) -> Act:
    """An error as the daemon tells it."""
    return answer(status, {"code": code, "detail": code, "status": status, **members})


def proxy_error(status: int) -> Act:
    """An error that is not the daemon's."""
    return Act(answer=_http(status, b"<h1>Bad Gateway</h1>", b"text/html"))


def half(status: int, body: Mapping[str, Any]) -> Act:
    """An answer that breaks off in the middle of its body."""
    whole = answer(status, body).answer
    return Act(answer=whole[:-10], cut=True)


def lines(*events: Mapping[str, Any] | bytes, end: bool = True) -> Act:
    """An NDJSON stream; with `end` false it is cut where it is."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
    head += b"transfer-encoding: chunked\r\n\r\n"
    told = [e if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" for e in events]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in told)
    return Act(answer=head + chunks + (b"0\r\n\r\n" if end else b""), cut=not end)


CUT = Act(cut=True)
HANG = Act(hang=True)


def _http(status: int, body: bytes, kind: bytes) -> bytes:
    head = b"HTTP/1.1 %d Whatever\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


Script = Callable[[Seen], Act]


@dataclass(slots=True)
class FaultyServer:
    """A server on a free port; `seen` has every request that arrived whole."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    lines_opened: int = 0
    refuse_bodies: Act | None = None  # answer so as soon as a head is there, and close
    arrived: anyio.Event = field(default_factory=anyio.Event)  # another one after each request
    line_closed: anyio.Event = field(default_factory=anyio.Event)

    def said(self) -> list[str]:
        """The requests, as `METHOD /path`."""
        return [f"{seen.method} {seen.path}" for seen in self.seen]


@asynccontextmanager
async def faulty_server(*acts: Act, then: Act = CUT, port: int = 0) -> AsyncIterator[FaultyServer]:
    """Serve one act after the other, whichever line a request comes on; then `then` for ever."""
    script = list(acts)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    server = FaultyServer()
    address = listener.extra(SocketAttribute.local_address)  # noqa: S610 - no Django here
    server.url = f"http://127.0.0.1:{address[1]}"

    def next_act() -> Act:
        return script.pop(0) if script else then

    async def serve(stream: SocketStream) -> None:
        server.lines_opened += 1
        number = server.lines_opened
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream, h11.RemoteProtocolError):
                await _serve_line(stream, server, number, next_act)
        server.line_closed.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def faulty_client(
    *acts: Act, then: Act = CUT, connections: int = 100, patience_s: float = 30.0
) -> AsyncIterator[tuple[FaultyServer, AsyncSandboxd]]:
    """Such a server, and a client of it."""
    async with faulty_server(*acts, then=then) as server:
        client = AsyncSandboxd(server.url, connections=connections, patience_s=patience_s)
        async with client:
            yield server, client


async def _serve_line(
    stream: SocketStream, server: FaultyServer, number: int, next_act: Callable[[], Act]
) -> None:
    parser = h11.Connection(h11.SERVER)
    while True:
        if server.refuse_bodies is not None:
            await stream.receive(1000)
            await stream.send(server.refuse_bodies.answer)
            await stream.send_eof()
            while await stream.receive():
                pass
        seen = await _request(stream, parser, number)
        server.seen.append(seen)
        server.arrived.set()
        server.arrived = anyio.Event()
        act = next_act()
        if act.hang:
            await stream.receive()  # ends when the caller closes
            return
        await anyio.sleep(act.after_s)
        if act.answer:
            await stream.send(act.answer)
        if act.cut:
            return
        parser = h11.Connection(h11.SERVER)


async def _request(stream: SocketStream, parser: h11.Connection, number: int) -> Seen:
    head: h11.Request | None = None
    body = b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await stream.receive())
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            break
    assert head is not None
    parts = urlsplit(head.target.decode())
    return Seen(number, head.method.decode(), parts.path, parse_qs(parts.query), body)
