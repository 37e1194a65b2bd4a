"""A proxy that cuts connections in the middle, as real networks do."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream


@dataclass(slots=True)
class Cuts:
    """A running proxy: its address, and how many connections it has cut."""

    url: str
    count: int = 0


@asynccontextmanager
async def open_cutting_proxy(target: str, *, after_bytes: Callable[[], int]) -> AsyncIterator[Cuts]:
    """Pass connections on to `target`, each cut after so many bytes, both directions together."""
    where = urlsplit(target)
    host, to_port = where.hostname or "", where.port or 0
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - no Django here
    cuts = Cuts(f"http://127.0.0.1:{port}")

    async def serve(near: SocketStream) -> None:
        streams = [near]
        try:
            far = await anyio.connect_tcp(host, to_port)
            streams.append(far)
            cuts.count += await _pass_both(near, far, after_bytes())
        except OSError:
            pass  # nobody is there: as the caller would learn it
        finally:
            with anyio.CancelScope(shield=True):
                for stream in streams:
                    await anyio.aclose_forcefully(stream)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield cuts
        finally:
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class Network:
    """What lies between a caller and a daemon: there until it is cut, and again once mended."""

    url: str
    up: bool = True
    _lines: set[SocketStream] = field(default_factory=set)
    _silent: set[SocketStream] = field(default_factory=set)

    def fall_silent(self) -> None:
        """Let nothing pass on the connections there are, and say nothing of it."""
        self._silent |= self._lines

    async def cut(self) -> None:
        """Close every connection, and each new one until it is mended."""
        self.up = False
        for line in tuple(self._lines):
            await anyio.aclose_forcefully(line)

    def is_silent(self, line: SocketStream) -> bool:
        """Whether nothing passes on it any more."""
        return line in self._silent

    def mend(self) -> None:
        """Let connections through again."""
        self.up = True


@asynccontextmanager
async def open_network(target: str) -> AsyncIterator[Network]:
    """A way to `target` that a test can cut."""
    where = urlsplit(target)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - no Django here
    network = Network(f"http://127.0.0.1:{port}")

    async def serve(near: SocketStream) -> None:
        network._lines.add(near)
        try:
            if network.up:
                async with await anyio.connect_tcp(where.hostname or "", where.port or 0) as far:
                    await _pass_both(near, far, sys.maxsize, is_silent=network.is_silent)
        finally:
            network._lines.discard(near)
            network._silent.discard(near)
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(near)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield network
        finally:
            tasks.cancel_scope.cancel()


async def _pass_both(
    near: SocketStream,
    far: SocketStream,
    left: int,
    *,
    is_silent: Callable[[SocketStream], bool] = lambda _: False,
) -> bool:
    """Until one ends, or so many bytes have passed: whether that was it."""

    async def pass_on(source: SocketStream, sink: SocketStream) -> None:
        nonlocal left
        with suppress(
            anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError
        ):
            while left > 0:
                data = await source.receive(4096)
                if is_silent(near):
                    await anyio.sleep_forever()
                await sink.send(data[:left])
                left -= len(data)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on, near, far)
        tasks.start_soon(pass_on, far, near)
    return left <= 0
