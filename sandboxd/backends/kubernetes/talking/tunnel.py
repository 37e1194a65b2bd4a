"""A line to a port of a pod, through the API server: its port-forward, over a WebSocket.

The client library's own needs a thread for each line, and keeps all that nobody has read yet; here
whoever does not read holds up the other end.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from kubernetes.client import Configuration

from sandboxd.backends.kubernetes.talking.credentials import Access
from sandboxd.backends.kubernetes.talking.server import CONNECT_S, headers_for, url_of
from sandboxd.guest.line import LineAttribute
from sandboxd.wire import websocket
from sandboxd.wire.http1 import AsyncConnection, ConnectionLost
from sandboxd.wire.streams import AnyioStream
from sandboxd.wire.websocket import MessageDecoder, MessageError, Opcode

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1  # the two channels of the one port
_PORT_BYTES = 2  # each channel begins with the port that it is of
_READ_BYTES = 1 << 16
_SEND_BYTES = 1 << 16
_REFUSAL_BYTES = 1 << 14


class TunnelRefused(OSError):
    """The server leads nobody there. status: HTTP's."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def open_tunnel(access: Access, path: str, port: int) -> ByteStream:
    """A stream to that port of a pod; path: of its port-forward. The deadline is the caller's.

    Raises OSError where the server cannot be reached, TunnelRefused where it says no. That nobody
    listens there shows when the stream is read.
    """
    stream = await _connect(access)
    try:
        early = await _upgrade(stream, access, path, port)
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return Tunnel(stream, early)


async def _connect(access: Access) -> ByteStream:
    url = urlsplit(access.api.configuration.host)
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    with anyio.fail_after(CONNECT_S):
        plain = await anyio.connect_tcp(host, port)
        if url.scheme != "https":
            return plain
        try:
            return await _secured(plain, access.api.configuration, host=host)
        except BaseException:  # the library leaves it open, whatever went wrong
            await anyio.aclose_forcefully(plain)
            raise


async def _secured(plain: ByteStream, configuration: Configuration, *, host: str) -> ByteStream:
    context = await to_thread.run_sync(_context, configuration)
    name = configuration.tls_server_name or host
    try:
        return await TLSStream.wrap(
            plain, hostname=name, ssl_context=context, standard_compatible=False
        )
    except (ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise ConnectionResetError(f"the API server's TLS: {error}") from error


def _context(configuration: Configuration) -> ssl.SSLContext:
    """As the calls have it. Reads files."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


async def _upgrade(stream: ByteStream, access: Access, path: str, port: int) -> bytes:
    """What came with the answer. Raises TunnelRefused, ConnectionLost."""
    key = websocket.new_key()
    url = urlsplit(url_of(access, path, {"ports": port}))
    known = await to_thread.run_sync(headers_for, access)
    headers = [
        (b"host", url.netloc.encode()),
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", key),
        (b"sec-websocket-protocol", _PROTOCOL.encode()),
        *((name.lower().encode(), value.encode()) for name, value in known.items()),
    ]
    connection = AsyncConnection(AnyioStream(stream))
    answer = await connection.request("GET", f"{url.path}?{url.query}", headers)
    if answer.status != 101:
        said = await answer.read(limit=_REFUSAL_BYTES)
        raise TunnelRefused(answer.status, said.decode(errors="replace")[:2000])
    if answer.header(b"sec-websocket-accept") != websocket.accept_of(key):
        raise ConnectionLost("the API server's upgrade is not to our key", sent=True)
    return connection.detach()[1]


class Tunnel(ByteStream):
    """The bytes of one port. A cancelled `receive` loses nothing."""

    def __init__(self, inner: ByteStream, early: bytes) -> None:
        self._inner = inner
        self._decoder = MessageDecoder()
        self._greeted: set[int] = set()  # the channels that have named their port
        self._waiting = bytearray()
        self._early = early
        self._ended = False
        self._sending = anyio.Lock()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """That it ends as a whole; what is at its other end cannot be asked for."""
        return {LineAttribute.half_closes: lambda: False}

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """Some bytes. Raises EndOfStream, BrokenResourceError."""
        while not self._waiting:
            if self._ended:
                raise anyio.EndOfStream
            data, self._early = self._early or await self._inner.receive(_READ_BYTES), b""
            await self._take(data)
        piece = bytes(self._waiting[:max_bytes])
        del self._waiting[:max_bytes]
        return piece

    async def _take(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except MessageError as error:
            raise anyio.BrokenResourceError from error
        for opcode, payload in messages:
            if opcode is Opcode.PING:
                await self._send(websocket.encode(Opcode.PONG, payload))
            elif opcode is Opcode.CLOSE:
                self._ended = True
            elif opcode is Opcode.BINARY and payload:
                self._sort(payload[0], payload[1:])

    def _sort(self, channel: int, payload: bytes) -> None:
        if channel not in self._greeted:
            self._greeted.add(channel)
            payload = payload[_PORT_BYTES:]
        if channel == _DATA:
            self._waiting += payload
        elif channel == _ERROR and payload:
            self._ended = True

    async def send(self, item: bytes) -> None:
        """Send all. Raises BrokenResourceError, ClosedResourceError."""
        for start in range(0, len(item), _SEND_BYTES):
            piece = bytes((_DATA,)) + bytes(item[start : start + _SEND_BYTES])
            await self._send(websocket.encode(Opcode.BINARY, piece))

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await self._inner.send(frame)

    async def send_eof(self) -> None:
        """Nothing: the server knows no half-closed line."""

    async def aclose(self) -> None:
        """Close it; what was sent and not read yet is lost."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError):
            await anyio.aclose_forcefully(self._inner)
