"""Connections to one daemon: opened, used again, dropped.

Knows no retry but the one for a connection that went stale.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar
from weakref import WeakKeyDictionary

from sandboxd.wire.http1 import AsyncConnection, AsyncResponse, ConnectionLost, Headers
from sandboxd_client._core.calls import Call
from sandboxd_client._core.idle import IdleConnections
from sandboxd_client._core.settings import Address
from sandboxd_client._core.tracing import trace_headers
from sandboxd_client._runtime import aio as runtime

_CLOSE_S = 5.0
_RESERVE = 64  # connections beyond the limit, for calls that give something back

T = TypeVar("T")

AsyncBody = Callable[[], AsyncIterator[bytes]]  # made anew for each try


class AsyncHeld:
    """A connection and the line below it."""

    __slots__ = ("connection", "line")

    def __init__(self, line: runtime.Line) -> None:
        self.line = line
        self.connection = AsyncConnection(line)


class AsyncPool:
    """The connections of one event loop (or of one process, in the synchronous twin)."""

    def __init__(self, *, limit: int) -> None:
        self.closed = False
        self._slots = runtime.Slots(limit)
        self._reserve = runtime.Slots(_RESERVE)
        self.idle: IdleConnections[AsyncHeld] = IdleConnections()
        self.guard: AbstractContextManager[object] = runtime.guard()

    def slots_of(self, call: Call) -> runtime.Slots:
        """Where a call waits for its turn."""
        return self._reserve if call.ends else self._slots

    def take(self) -> tuple[AsyncHeld | None, list[AsyncHeld]]:
        """The best connection at rest, if one is sound, and those to close."""
        with self.guard:
            old = self.idle.expire(now=runtime.now())
            while (held := self.idle.take()) is not None:
                if not held.line.has_news():
                    return held, old
                old.append(held)
            return None, old

    def put(self, held: AsyncHeld) -> None:
        """Lay a connection to rest."""
        with self.guard:
            self.idle.put(held, now=runtime.now())

    def clear(self) -> list[AsyncHeld]:
        """All connections at rest, to be closed."""
        with self.guard:
            return self.idle.clear()


class AsyncExchange:
    """An answer that has begun, and the connection it comes on. Close it, whatever happens."""

    __slots__ = ("_call", "_held", "_pool", "response")

    def __init__(
        self, pool: AsyncPool, call: Call, held: AsyncHeld, response: AsyncResponse
    ) -> None:
        self._pool = pool
        self._call = call
        self._held: AsyncHeld | None = held
        self.response = response

    async def aclose(self) -> None:
        """Give the connection back if the answer was read to its end, else close it. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            await _lay_down(self._pool, self._call, held)


class AsyncTransport:
    """Sends single requests. One per client; safe after fork and from several event loops."""

    def __init__(self, address: Address, *, headers: Headers, limit: int) -> None:
        self._address = address
        self._headers: Headers = [(b"host", address.authority.encode("latin-1")), *headers]
        self._limit = limit
        self._begin_books()

    def _begin_books(self) -> None:
        """Empty books for this process.

        After a fork what the parent's pools hold is theirs: the child forgets it, and sends
        nothing on it, no farewell of TLS either. Its lock may have been held at that moment.
        """
        self._pid = os.getpid()
        self._pools: WeakKeyDictionary[object, AsyncPool] = WeakKeyDictionary()
        self._opening = runtime.lock()

    def _pool(self) -> AsyncPool:
        if self._pid != os.getpid():
            self._begin_books()
        home = runtime.home()
        return self._pools.get(home) or self._new_pool(home)

    def _new_pool(self, home: object) -> AsyncPool:
        """A pool for an event loop that had none; pools of loops that are gone go too."""
        with self._opening:
            for other in [other for other in self._pools if runtime.is_gone(other)]:
                del self._pools[other]
            return self._pools.setdefault(home, AsyncPool(limit=self._limit))

    async def send(self, call: Call, body: AsyncBody | None = None) -> AsyncExchange:
        """Send a request and wait for the head of its answer.

        body: makes the pieces to send instead of `call.body`. Raises ConnectionLost (its `sent`
        false means that it certainly had no effect). Cancelled: the connection is closed.
        """

        async def begin(held: AsyncHeld) -> AsyncResponse:
            return await held.connection.request(
                call.method,
                self._address.prefix + call.path,
                self._headers_of(call, chunked=body is not None),
                call.body if body is None else body(),
            )

        pool, held, response = await self._on_a_line(call, begin)
        return AsyncExchange(pool, call, held, response)

    async def ask(self, call: Call, *, limit: int) -> tuple[int, Headers, bytes]:
        """Send a short request and read its whole answer of at most `limit` bytes.

        Raises as `send` does; cheaper than that, and what nearly every call needs.
        """

        async def exchange(held: AsyncHeld) -> tuple[int, Headers, bytes]:
            return await held.connection.exchange(
                call.method,
                self._address.prefix + call.path,
                self._headers_of(call, chunked=False),
                call.body,
                limit=limit,
            )

        pool, held, answer = await self._on_a_line(call, exchange)
        await _lay_down(pool, call, held)
        return answer

    async def upgrade(self, call: Call, headers: Headers) -> tuple[AsyncHeld, AsyncResponse]:
        """Ask for another protocol, on a connection of its own that takes no slot of the pool.

        What is returned is the caller's to close. Raises ConnectionLost.
        """
        held = await self._open(call)
        try:
            target = self._address.prefix + call.path
            headers = [*self._headers, *trace_headers(), *headers]
            return held, await held.connection.request(call.method, target, headers)
        except BaseException:
            await _close_all([held])
            raise

    async def _on_a_line(
        self, call: Call, act: Callable[[AsyncHeld], Awaitable[T]]
    ) -> tuple[AsyncPool, AsyncHeld, T]:
        """Do it on a connection at rest, or on a new one, and again on a new one if that was stale.

        What is returned holds a slot of the pool.
        """
        pool = self._pool()
        slots = pool.slots_of(call)
        await slots.acquire()
        held, old = pool.take()
        if old:
            await _close_all(old)
        if held is not None:
            try:
                return await self._try(pool, held, call, act)
            except ConnectionLost as lost:
                # Most likely the daemon went away while the line was at rest.
                if lost.sent and not call.safe:
                    raise
            await _close_all(pool.clear())
            await slots.acquire()
        return await self._try(pool, None, call, act)

    async def _try(
        self,
        pool: AsyncPool,
        held: AsyncHeld | None,
        call: Call,
        act: Callable[[AsyncHeld], Awaitable[T]],
    ) -> tuple[AsyncPool, AsyncHeld, T]:
        """Once, on that connection or on a new one. Gives the slot back if it fails."""
        try:
            if held is None:
                held = await self._open(call)
            held.line.silence_s, held.line.at_rest = call.silence_s, True
            return pool, held, await act(held)
        except BaseException:
            await _discard(pool, call, held)
            raise

    async def _open(self, call: Call) -> AsyncHeld:
        try:
            return AsyncHeld(await runtime.connect(self._address, silence_s=call.silence_s))
        except OSError as error:
            where = f"{self._address.host}:{self._address.port}"
            why = str(error) or type(error).__name__
            raise ConnectionLost(f"no connection to {where}: {why}", sent=False) from error

    def _headers_of(self, call: Call, *, chunked: bool) -> Headers:
        headers = [*self._headers, *trace_headers(), (b"accept", call.accept.encode())]
        headers += [(name.encode(), value.encode()) for name, value in call.headers]
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if chunked or call.body is not None:
            headers.append((b"content-type", call.content_type.encode()))
        return headers

    async def aclose(self) -> None:
        """Close this loop's connections at rest. Those in use close when their calls end."""
        if self._pid != os.getpid():
            return
        with self._opening:
            pool = self._pools.pop(runtime.home(), None)
        if pool is not None:
            pool.closed = True
            await _close_all(pool.clear())


async def _lay_down(pool: AsyncPool, call: Call, held: AsyncHeld) -> None:
    """Keep a connection for the next call if it is fit for one."""
    if held.connection.idle and not pool.closed:
        pool.put(held)
        pool.slots_of(call).release()
    else:
        await _discard(pool, call, held)


async def _discard(pool: AsyncPool, call: Call, held: AsyncHeld | None) -> None:
    pool.slots_of(call).release()
    if held is not None:
        await _close_all([held])


async def _close_all(connections: list[AsyncHeld]) -> None:
    with runtime.shielded(_CLOSE_S):
        for held in connections:
            await held.connection.aclose()
