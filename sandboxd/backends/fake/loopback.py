"""The loopback of a box in memory: who listens on which port, and lines to them.

Two programs use it, `tcp-echo [PORT]` and `tcp-send PORT`; and its guest, for the daemon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from sandboxd.backends.fake.guest.process import Process, Program
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.pipes import MemoryStream, stream_pair
from sandboxd.model.ids import is_caller_id

_FIRST_FREE_PORT = 32768
_LARGEST_PORT = 65535
_MOST_QUEUED = 64
_READ_BYTES = 65536

Arrived = Callable[[MemoryStream], None]


class Loopback:
    """Ports, and what is done with a connection that comes to each."""

    def __init__(self) -> None:
        self._ports: dict[int, Arrived] = {}
        self._next = _FIRST_FREE_PORT

    def listen(self, port: int, arrived: Arrived) -> int:
        """Give every connection to `arrived`; port 0: a free one. Raises OSError if it is taken."""
        while not port or port in self._ports:
            if port:
                raise OSError(f"port {port} is in use")
            self._next += 1
            port = 0 if self._next in self._ports else self._next
        self._ports[port] = arrived
        return port

    def close(self, port: int) -> None:
        """Listen no more."""
        self._ports.pop(port, None)

    def connect(self, port: int) -> MemoryStream:
        """A line to who listens there. Raises Refusal."""
        arrived = self._ports.get(port)
        if arrived is None:
            raise Refusal("conflict", f"nobody listens on port {port}", reason="refused")
        ours, theirs = stream_pair()
        arrived(theirs)
        return ours


class Listeners:
    """The ports on which the guest listens for the daemon, and who has come to them."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback
        self._ports: dict[str, int] = {}
        self._queue: deque[tuple[str, MemoryStream]] = deque()
        self._takers: deque[tuple[anyio.Event, list[tuple[str, MemoryStream]]]] = deque()

    def set(self, said: Any) -> list[dict[str, Any]]:
        """Make this the whole list. Raises Refusal."""
        wanted = _read_list(said)
        for name, port in list(self._ports.items()):
            if wanted.get(name) not in {0, port}:
                self._loopback.close(self._ports.pop(name))
        return [self._open(name, port) for name, port in wanted.items()]

    async def take(self) -> tuple[str, MemoryStream]:
        """The next connection."""
        await anyio.lowlevel.checkpoint()
        if self._queue:
            return self._queue.popleft()
        taker = (anyio.Event(), list[tuple[str, MemoryStream]]())
        self._takers.append(taker)
        try:
            await taker[0].wait()
        except BaseException:
            if taker in self._takers:
                self._takers.remove(taker)
            for name, stream in taker[1]:
                self.offer(name, stream)
            raise
        return taker[1].pop()

    def offer(self, name: str, stream: MemoryStream) -> None:
        """Hand a connection to who has waited longest, or queue it; close it if too many wait."""
        if self._takers:
            event, hand = self._takers.popleft()
            hand.append((name, stream))
            event.set()
        elif len(self._queue) < _MOST_QUEUED:
            self._queue.append((name, stream))
        else:
            stream.close()

    def _open(self, name: str, port: int) -> dict[str, Any]:
        if name not in self._ports:
            try:
                self._ports[name] = self._loopback.listen(port, lambda s: self.offer(name, s))
            except OSError:
                return {"name": name, "port": port, "error": "in_use"}
        return {"name": name, "port": self._ports[name]}


def _read_list(said: Any) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for listener in said if isinstance(said, list) else [None]:
        name, port = (listener or {}).get("name"), (listener or {}).get("port")
        if not isinstance(name, str) or not is_caller_id(name) or name in wanted:
            raise Refusal("bad_request", "a listener's name is not valid, or there twice")
        if type(port) is not int or not 0 <= port <= _LARGEST_PORT:
            raise Refusal("bad_request", "a listener's port is from 0 to 65535")
        wanted[name] = port
    return wanted


async def join_streams(one: ByteStream, other: ByteStream) -> None:
    """Pass bytes both ways until both directions have ended. Closes both."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_pass, one, other, name="there")
            group.start_soon(_pass, other, one, name="back")
    finally:
        await anyio.aclose_forcefully(one)
        await anyio.aclose_forcefully(other)


async def _pass(source: ByteStream, sink: ByteStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await sink.send(await source.receive(_READ_BYTES))
    with suppress(anyio.ClosedResourceError):
        await sink.send_eof()


async def _echo(stream: MemoryStream) -> None:
    async with stream:
        await _pass(stream, stream)


def programs(loopback: Loopback) -> dict[str, Program]:
    """Those that use this loopback."""

    async def tcp_echo(process: Process) -> int:
        """Say on which port it listens, and send back to everyone what they send."""

        def arrived(stream: MemoryStream) -> None:
            process.family.spawn(lambda: _echo(stream))

        port = loopback.listen(int(process.argv[1]) if process.argv[1:] else 0, arrived)
        try:
            await process.out(f"{port}\n")
            await anyio.sleep_forever()
        finally:
            loopback.close(port)
        return 0

    async def tcp_send(process: Process) -> int:
        """Send the input to a port, and write what comes back."""
        try:
            stream = loopback.connect(int(process.argv[1]))
        except Refusal as refusal:
            await process.err(f"tcp-send: {refusal.detail}\n")
            return 1
        async with stream:
            await stream.send(await process.read_all())
            await stream.send_eof()
            with suppress(anyio.EndOfStream):
                while True:
                    await process.out(await stream.receive())
        return 0

    return {"tcp-echo": tcp_echo, "tcp-send": tcp_send}
