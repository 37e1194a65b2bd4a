# Generated from client/sandboxd_client/_async/transport.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Connections to one daemon: opened, used again, dropped.

Knows no retry but the one for a connection that went stale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar
from weakref import WeakKeyDictionary

from sandboxd.wire.http1_sync import Connection, ConnectionLost, Headers, Response
from sandboxd_client._core.calls import Call
from sandboxd_client._core.idle import IdleConnections
from sandboxd_client._core.settings import Address
from sandboxd_client._core.tracing import trace_headers
from sandboxd_client._runtime import sio as runtime

_CLOSE_S = 5.0
_RESERVE = 64  # connections beyond the limit, for calls that give something back

T = TypeVar("T")

Body = Callable[[], Iterator[bytes]]  # made anew for each try


class Held:
    """A connection and the line below it."""

    __slots__ = ("connection", "line")

    def __init__(self, line: runtime.Line) -> None:
        self.line = line
        self.connection = Connection(line)


class Pool:
    """The connections of one event loop (or of one process, in the synchronous twin)."""

    def __init__(self, *, limit: int) -> None:
        self.closed = False
        self._slots = runtime.Slots(limit)
        self._reserve = runtime.Slots(_RESERVE)
        self.idle: IdleConnections[Held] = IdleConnections()
        self.guard: AbstractContextManager[object] = runtime.guard()

    def slots_of(self, call: Call) -> runtime.Slots:
        """Where a call waits for its turn."""
        return self._reserve if call.ends else self._slots

    def take(self) -> tuple[Held | None, list[Held]]:
        """The best connection at rest, if one is sound, and those to close."""
        with self.guard:
            old = self.idle.expire(now=runtime.now())
            while (held := self.idle.take()) is not None:
                if not held.line.has_news():
                    return held, old
                old.append(held)
            return None, old

    def put(self, held: Held) -> None:
        """Lay a connection to rest."""
        with self.guard:
            self.idle.put(held, now=runtime.now())

    def clear(self) -> list[Held]:
        """All connections at rest, to be closed."""
        with self.guard:
            return self.idle.clear()


class Exchange:
    """An answer that has begun, and the connection it comes on. Close it, whatever happens."""

    __slots__ = ("_call", "_held", "_pool", "response")

    def __init__(self, pool: Pool, call: Call, held: Held, response: Response) -> None:
        self._pool = pool
        self._call = call
        self._held: Held | None = held
        self.response = response

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else close it. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            _lay_down(self._pool, self._call, held)


class Transport:
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
        self._pools: WeakKeyDictionary[object, Pool] = WeakKeyDictionary()
        self._opening = runtime.lock()

    def _pool(self) -> Pool:
        if self._pid != os.getpid():
            self._begin_books()
        home = runtime.home()
        return self._pools.get(home) or self._new_pool(home)

    def _new_pool(self, home: object) -> Pool:
        """A pool for an event loop that had none; pools of loops that are gone go too."""
        with self._opening:
            for other in [other for other in self._pools if runtime.is_gone(other)]:
                del self._pools[other]
            return self._pools.setdefault(home, Pool(limit=self._limit))

    def send(self, call: Call, body: Body | None = None) -> Exchange:
        """Send a request and wait for the head of its answer.

        body: makes the pieces to send instead of `call.body`. Raises ConnectionLost (its `sent`
        false means that it certainly had no effect). Cancelled: the connection is closed.
        """

        def begin(held: Held) -> Response:
            return held.connection.request(
                call.method,
                self._address.prefix + call.path,
                self._headers_of(call, chunked=body is not None),
                call.body if body is None else body(),
            )

        pool, held, response = self._on_a_line(call, begin)
        return Exchange(pool, call, held, response)

    def ask(self, call: Call, *, limit: int) -> tuple[int, Headers, bytes]:
        """Send a short request and read its whole answer of at most `limit` bytes.

        Raises as `send` does; cheaper than that, and what nearly every call needs.
        """

        def exchange(held: Held) -> tuple[int, Headers, bytes]:
            return held.connection.exchange(
                call.method,
                self._address.prefix + call.path,
                self._headers_of(call, chunked=False),
                call.body,
                limit=limit,
            )

        pool, held, answer = self._on_a_line(call, exchange)
        _lay_down(pool, call, held)
        return answer

    def upgrade(self, call: Call, headers: Headers) -> tuple[Held, Response]:
        """Ask for another protocol, on a connection of its own that takes no slot of the pool.

        What is returned is the caller's to close. Raises ConnectionLost.
        """
        held = self._open(call)
        try:
            target = self._address.prefix + call.path
            headers = [*self._headers, *trace_headers(), *headers]
            return held, held.connection.request(call.method, target, headers)
        except BaseException:
            _close_all([held])
            raise

    def _on_a_line(self, call: Call, act: Callable[[Held], T]) -> tuple[Pool, Held, T]:
        """Do it on a connection at rest, or on a new one, and again on a new one if that was stale.

        What is returned holds a slot of the pool.
        """
        pool = self._pool()
        slots = pool.slots_of(call)
        slots.acquire()
        held, old = pool.take()
        if old:
            _close_all(old)
        if held is not None:
            try:
                return self._try(pool, held, call, act)
            except ConnectionLost as lost:
                # Most likely the daemon went away while the line was at rest.
                if lost.sent and not call.safe:
                    raise
            _close_all(pool.clear())
            slots.acquire()
        return self._try(pool, None, call, act)

    def _try(
        self,
        pool: Pool,
        held: Held | None,
        call: Call,
        act: Callable[[Held], T],
    ) -> tuple[Pool, Held, T]:
        """Once, on that connection or on a new one. Gives the slot back if it fails."""
        try:
            if held is None:
                held = self._open(call)
            held.line.silence_s, held.line.at_rest = call.silence_s, True
            return pool, held, act(held)
        except BaseException:
            _discard(pool, call, held)
            raise

    def _open(self, call: Call) -> Held:
        try:
            return Held(runtime.connect(self._address, silence_s=call.silence_s))
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

    def close(self) -> None:
        """Close this loop's connections at rest. Those in use close when their calls end."""
        if self._pid != os.getpid():
            return
        with self._opening:
            pool = self._pools.pop(runtime.home(), None)
        if pool is not None:
            pool.closed = True
            _close_all(pool.clear())


def _lay_down(pool: Pool, call: Call, held: Held) -> None:
    """Keep a connection for the next call if it is fit for one."""
    if held.connection.idle and not pool.closed:
        pool.put(held)
        pool.slots_of(call).release()
    else:
        _discard(pool, call, held)


def _discard(pool: Pool, call: Call, held: Held | None) -> None:
    pool.slots_of(call).release()
    if held is not None:
        _close_all([held])


def _close_all(connections: list[Held]) -> None:
    with runtime.shielded(_CLOSE_S):
        for held in connections:
            held.connection.close()
