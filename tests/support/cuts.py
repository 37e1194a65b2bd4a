"""A proxy that cuts connections in the middle, as real networks do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
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


async def _pass_both(near: SocketStream, far: SocketStream, left: int) -> bool:
    """Until one ends, or so many bytes have passed: whether that was it."""

    async def pass_on(source: SocketStream, sink: SocketStream) -> None:
        nonlocal left
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError):
            while left > 0:
                data = await source.receive(4096)
                await sink.send(data[:left])
                left -= len(data)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on, near, far)
        tasks.start_soon(pass_on, far, near)
    return left <= 0
