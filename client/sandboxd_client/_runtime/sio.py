"""The synchronous side: blocking sockets and threads, no event loop. `aio` has the same names."""

from __future__ import annotations

import socket
import threading  # noqa: TID251 - the twin for programs without an event loop
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from sandboxd.wire.streams import SocketStream
from sandboxd_client._core.settings import Address
from sandboxd_client._core.tarballs import ChunkReader
from sandboxd_client._runtime.readable import is_readable

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0

# The deadline of the block this thread is in; every wait below observes it.
_DEADLINE: ContextVar[float | None] = ContextVar("sandboxd_client.deadline", default=None)

now = time.monotonic


def _left(most_s: float) -> float:
    """Seconds that a wait may last. Raises TimeoutError once the block's deadline has passed."""
    deadline = _DEADLINE.get()
    if deadline is None:
        return most_s
    left = deadline - now()
    if left <= 0:
        raise TimeoutError("the time for this block is over")
    return min(most_s, left)


def sleep(seconds: float) -> None:
    """Wait. Raises TimeoutError where the block's deadline comes first."""
    allowed = _left(seconds)
    time.sleep(allowed)  # noqa: TID251 - this thread is the caller's own
    if allowed < seconds:
        raise TimeoutError("the time for this block is over")


@contextmanager
def shielded(timeout_s: float) -> Iterator[None]:
    """A block of cleanup that does not last longer than that; what it could not end is left."""
    token = _DEADLINE.set(now() + timeout_s)
    try:
        yield
    except TimeoutError:
        pass
    finally:
        _DEADLINE.reset(token)


def guard() -> AbstractContextManager[object]:
    """What protects books that several threads touch."""
    return threading.Lock()


def lock() -> threading.Lock:
    """What protects a book that several threads touch. Never held long."""
    return threading.Lock()


def turns() -> threading.Lock:
    """Lets threads take turns at what may be waited for long. `locked()` tells if one is at it."""
    return threading.Lock()


class _Everywhere:
    """The one home of all threads' connections."""


_EVERYWHERE = _Everywhere()


def home() -> object:
    """What a pool of connections belongs to: the process."""
    return _EVERYWHERE


def is_gone(home_of_pool: object) -> bool:
    """Never: the process is still here."""
    return home_of_pool is not _EVERYWHERE


class Slots:
    """At most so many at once; waiting for one is bounded by the block's deadline."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    def acquire(self) -> None:
        """Wait for a slot. Raises TimeoutError at the block's deadline."""
        if not self._semaphore.acquire(timeout=_left(threading.TIMEOUT_MAX)):
            raise TimeoutError("no connection became free in time")

    def release(self) -> None:
        """Give it back."""
        self._semaphore.release()


class Line:
    """A connected stream on which no single wait lasts longer than `silence_s`."""

    __slots__ = ("_inner", "_socket", "at_rest", "silence_s")

    def __init__(self, inner: socket.socket, *, silence_s: float) -> None:
        self._inner = SocketStream(inner)
        self._socket = inner
        self.at_rest = True
        self.silence_s = silence_s

    def receive(self, max_bytes: int) -> bytes:
        """Some bytes; empty at the end. Raises OSError, TimeoutError among them."""
        self._inner.set_timeout(_left(self.silence_s))
        return self._inner.receive(max_bytes)

    def send(self, data: bytes) -> None:
        """Send all. Raises OSError, TimeoutError among them."""
        self._inner.set_timeout(_left(self.silence_s))
        self._inner.send(data)

    def close(self) -> None:
        """Close at once."""
        self._inner.close()

    def has_news(self) -> bool:
        """Whether a line that should be at rest has something to read: its end, most likely."""
        return is_readable(self._socket)


def connect(address: Address, *, silence_s: float) -> Line:
    """Open a line, with TLS where the address has it. Raises OSError, TimeoutError among them."""
    sock = socket.create_connection((address.host, address.port), timeout=_left(CONNECT_TIMEOUT_S))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is not None:
            sock = address.tls.wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise
    return Line(sock, silence_s=silence_s)


def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Do blocking work: here, now."""
    return work(*args)


class Pieces:
    """Blocking pieces (of a file, say), one after the other."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[bytes]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return next(self._iterator)


def pour(next_chunk: Callable[[], bytes], into: Callable[[ChunkReader], T]) -> T:
    """Let code that reads (tarfile, say) read what arrives chunk by chunk."""
    return into(ChunkReader(next_chunk))


def mcp_session(
    url: str, headers: Mapping[str, str], options: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    """See `integrations.mcp`. Raises ImportError without the `mcp` package."""
    from sandboxd_client.integrations.mcp import (  # noqa: PLC0415 - an extra
        blocking_session_with,
    )

    return blocking_session_with(url, headers, options)
