"""The sandbox's own network as its guest lends it: ports inside, and listeners that lead out.

Knows how a bare stream is come by; not what is spoken on it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import anyio
from anyio.abc import ByteStream

from sandboxd.guest.fields import Fields, loads, nonsense
from sandboxd.guest.line import GuestLost, Line, LineAttribute, drop
from sandboxd.guest.streams.pieces import open_pieces
from sandboxd.guest.streams.unix_stream import UnixStream
from sandboxd.wire.http1 import AsyncResponse, Headers
from sandboxd.wire.streams import AnyioStream

_READ_BYTES = 1 << 18
_MAX_PORT = 65535
_UPGRADE: Headers = [(b"connection", b"Upgrade"), (b"upgrade", b"sandbox-bytes")]
_IN_PIECES: Headers = [*_UPGRADE, (b"x-pieces", b"1")]  # which older guests do not know


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of the sandbox's loopback on which its guest listens for us.

    port: 0 in an order leaves the choice to the guest. error: why it does not listen, like
    `in_use`, `forbidden` or `failed`; empty if it does.
    """

    name: str
    port: int = 0
    error: str = ""


class GuestStream(ByteStream):
    """One connection inside. Each direction ends by itself: `send_eof` ends ours.

    Raises what anyio's streams raise: EndOfStream, BrokenResourceError, ClosedResourceError.
    Whether the box still lives when it breaks is a question for the backend. Closing never waits.
    """

    def __init__(self, inner: ByteStream, early: bytes) -> None:
        self._inner = inner
        self._early = early

    @property
    def extra_attributes(self) -> Any:
        """Those of the line to the guest."""
        return self._inner.extra_attributes

    def bare(self) -> tuple[socket.socket, bytes] | None:
        """The non-blocking socket below, for who moves bytes himself, and what was read of it. Only
        one of the two may be used from then on. None where there is more to it than a socket.
        """
        if not isinstance(self._inner, UnixStream):
            return None
        early, self._early = self._early, b""
        return self._inner.bare, early

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """Some bytes. A cancelled call loses none."""
        if self._early:
            piece, self._early = self._early[:max_bytes], self._early[max_bytes:]
            return piece
        return await self._inner.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send all; waits for a slow reader. Cancelled: some of it may have been sent."""
        await self._inner.send(item)

    async def send_eof(self) -> None:
        """End our direction; the other one goes on."""
        await self._inner.send_eof()

    async def aclose(self) -> None:
        """Close both directions, at once. Idempotent."""
        await anyio.aclose_forcefully(self._inner)


async def open_port(line: Line, port: int) -> GuestStream:
    """A connection to who listens on that port inside; see `Guest.open_port`."""
    _, stream = await _upgraded(line, f"/v1/ports/{port}")
    return stream


async def set_listeners(line: Line, listeners: Iterable[Listener]) -> list[Listener]:
    """Make this the whole list; see `Guest.set_listeners`."""
    order = [{"name": listener.name, "port": listener.port} for listener in listeners]
    body = json.dumps({"listeners": order}).encode()
    answer = loads((await line.call("PUT", "/v1/listeners", body)).body)
    return [_read_listener(said) for said in answer.each("listeners")]


async def accept(line: Line) -> tuple[str, GuestStream]:
    """The next connection to a listener, and whose it is; see `Guest.accept`."""
    response, stream = await _upgraded(line, "/v1/accept")
    name = response.header(b"x-listener")
    if not name:
        await stream.aclose()
        raise nonsense("x-listener")
    return name, stream


async def _upgraded(line: Line, target: str) -> tuple[AsyncResponse, GuestStream]:
    connection, response = await line.open("GET", target, _upgrade_on)
    if response.status != 101:
        await drop(connection)
        raise nonsense("upgrade")
    stream, early = connection.detach()
    # A line's connections are made of these alone.
    inner = cast("AnyioStream", stream).inner
    if response.header(b"upgrade") != "sandbox-pieces":
        return response, GuestStream(inner, early)
    try:
        return response, GuestStream(await open_pieces(inner, early), b"")
    except anyio.BrokenResourceError as error:
        await anyio.aclose_forcefully(inner)
        raise GuestLost("cut off", sent=True) from error
    except BaseException:
        await anyio.aclose_forcefully(inner)
        raise


def _upgrade_on(stream: ByteStream) -> Headers:
    return _UPGRADE if stream.extra(LineAttribute.half_closes, default=True) else _IN_PIECES  # noqa: S610 - no query


def _read_listener(said: Fields) -> Listener:
    port = said.count("port")
    if port > _MAX_PORT:
        raise nonsense("port")
    return Listener(
        name=said.text("name", limit=128),
        port=port,
        error=said.optional_text("error", limit=64) or "",
    )
