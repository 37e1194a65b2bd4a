"""The asynchronous side: anyio, so asyncio and trio alike. `sio` has the same names."""

from __future__ import annotations

import socket
import threading  # noqa: TID251 - one client may serve event loops in several threads
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSStream

from sandboxd.wire.streams import AnyioStream
from sandboxd_client._core.settings import Address
from sandboxd_client._core.tarballs import ChunkReader
from sandboxd_client._runtime.readable import is_readable

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0

_SURELY_FITS_BYTES = 16384  # every system's send buffer is larger

sleep = anyio.sleep
now = anyio.current_time


def shielded(timeout_s: float) -> AbstractContextManager[object]:
    """Cleanup goes on although the caller was cancelled, but not for longer than that."""
    return anyio.move_on_after(timeout_s, shield=True)


def guard() -> AbstractContextManager[object]:
    """What protects books that several threads might touch: nothing, one loop has one thread."""
    return nullcontext()


def lock() -> threading.Lock:
    """What protects a book that several loops, in as many threads, might touch. Never held long."""
    return threading.Lock()


def turns() -> anyio.Lock:
    """Lets tasks take turns at what may be waited for long. `locked()` tells if one is at it."""
    return anyio.Lock()


def home() -> object:
    """What a pool of connections belongs to: the running event loop."""
    return anyio.lowlevel.current_token().native_token


def is_gone(home_of_pool: object) -> bool:
    """Whether that event loop is known to be closed."""
    is_closed = getattr(home_of_pool, "is_closed", None)
    return bool(is_closed and is_closed())


class Slots:
    """At most so many at once; waiting for one is bounded by the caller's own deadline."""

    def __init__(self, count: int) -> None:
        self._semaphore = anyio.Semaphore(count, fast_acquire=True)

    async def acquire(self) -> None:
        """Wait for a slot."""
        await self._semaphore.acquire()

    def release(self) -> None:
        """Give it back."""
        self._semaphore.release()


class Line:
    """A connected stream on which no single wait lasts longer than `silence_s`.

    at_rest: nothing was sent since the last answer, so a small send cannot block and needs no
    deadline (which costs as much as the send itself).
    """

    __slots__ = ("_inner", "_socket", "at_rest", "silence_s")

    def __init__(self, inner: ByteStream, *, silence_s: float) -> None:
        self._inner = AnyioStream(inner)
        self._socket = _socket_of(inner)
        self.at_rest = True
        self.silence_s = silence_s

    async def receive(self, max_bytes: int) -> bytes:
        """Some bytes; empty at the end. Raises OSError, TimeoutError among them."""
        # A bare scope: `fail_after` does the same at twice the cost, and this is the hot path.
        with anyio.CancelScope(deadline=now() + self.silence_s):
            return await self._inner.receive(max_bytes)
        raise TimeoutError(f"not a byte came for {self.silence_s:g} s")

    async def send(self, data: bytes) -> None:
        """Send all. Raises OSError, TimeoutError among them."""
        at_rest, self.at_rest = self.at_rest, False
        if at_rest and len(data) <= _SURELY_FITS_BYTES:
            await self._inner.send(data)
            return
        with anyio.fail_after(self.silence_s):
            await self._inner.send(data)

    async def aclose(self) -> None:
        """Close at once."""
        await self._inner.aclose()

    def has_news(self) -> bool:
        """Whether a line that should be at rest has something to read: its end, most likely."""
        return is_readable(self._socket)


async def connect(address: Address, *, silence_s: float) -> Line:
    """Open a line, with TLS where the address has it. Raises OSError, TimeoutError among them."""
    with anyio.fail_after(CONNECT_TIMEOUT_S):
        stream: ByteStream = await anyio.connect_tcp(address.host, address.port)
        _socket_of(stream).setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is not None:
            try:
                stream = await TLSStream.wrap(
                    stream,
                    hostname=address.host,
                    ssl_context=address.tls,
                    standard_compatible=False,
                )
            except anyio.BrokenResourceError as error:
                raise ConnectionResetError("the TLS handshake was cut") from error
    return Line(stream, silence_s=silence_s)


def _socket_of(stream: ByteStream) -> socket.socket:
    sock: socket.socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - no Django here
    return sock


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Do blocking work beside the loop. Cancelled: waits for the work's end, which must be near."""
    return await anyio.to_thread.run_sync(work, *args)


class AsyncPieces:
    """Blocking pieces (of a file, say), iterated over without blocking the loop."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[bytes]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece: bytes | None = await in_thread(next, self._iterator, None)
        if piece is None:
            raise StopAsyncIteration
        return piece


async def pour(
    next_chunk: Callable[[], Coroutine[Any, Any, bytes]], into: Callable[[ChunkReader], T]
) -> T:
    """Let blocking code (tarfile, say) read what arrives chunk by chunk."""
    return await in_thread(into, ChunkReader(lambda: anyio.from_thread.run(next_chunk)))


def mcp_session(
    url: str, headers: Mapping[str, str], options: Mapping[str, Any]
) -> AbstractAsyncContextManager[Any]:
    """See `integrations.mcp`. Raises ImportError without the `mcp` package."""
    from sandboxd_client.integrations.mcp import session_with  # noqa: PLC0415 - an extra

    return session_with(url, headers, options)


class Enterable(Protocol):
    """What ends itself when its `async with` is left."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


E = TypeVar("E", bound=Enterable)


class AsyncOpening(Generic[E]):
    """Something being opened: `await` it, or `async with` it to have it ended as well.

    It is opened once: whoever awaits or enters it again gets the same.
    """

    __slots__ = ("_opened", "_opening")

    def __init__(self, opening: Coroutine[Any, Any, E]) -> None:
        self._opening = opening
        self._opened: E | None = None

    def __await__(self) -> Generator[Any, Any, E]:
        return self._open().__await__()

    async def _open(self) -> E:
        if self._opened is None:
            self._opened = await self._opening
        return self._opened

    async def __aenter__(self) -> E:
        return await (await self._open()).__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)
