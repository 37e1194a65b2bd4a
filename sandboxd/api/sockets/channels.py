"""One Jupyter client's WebSocket at a kernel's channels, once it is accepted."""

from __future__ import annotations

import re
from contextlib import aclosing, suppress
from enum import IntEnum
from functools import partial

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandboxd.api.problems import translate
from sandboxd.api.services import Services
from sandboxd.api.sockets.ends import LEFT, Farewell, close_code, first_end, until_gone
from sandboxd.kernels.jupyter.channels import BESIDE_BYTES, Channels, Crowded, Heard, Lagged
from sandboxd.kernels.jupyter.frames import NoFrame, Order, read_frame, write_frame

PATIENCE_S = 30.0  # for a client to take a message
_FAREWELL_S = 2.0
_LARGEST_FRAME = 16 << 20  # a notebook's cell, or a picture for a widget
_CHANNELS = re.compile(r"/jupyter/api/kernels/[^/]+/channels\Z")


class CloseCode(IntEnum):
    """How the daemon closes. Errors of ours close with 4000 and their HTTP status (4410: the lease
    or the sandbox is over).
    """

    SHUT_DOWN = 1000
    UNREADABLE = 1003
    TOO_LARGE = 1009
    STOPPING = 1012  # the daemon stops, the kernel lives on: come back in a moment
    TOO_SLOW = 1013
    REPLACED = 4409  # its session has come by another connection


class ChannelsSession:
    """See the module."""

    def __init__(
        self, socket: WebSocket, services: Services, channels: Channels, *, v1: bool
    ) -> None:
        self._socket = socket
        self._services = services
        self._channels = channels
        self._v1 = v1
        self._thread = CapacityLimiter(1)

    async def run(self) -> None:
        """Pass both ways until the first reason to end, and say that."""
        parts = {
            "channels-pour": self._pour,
            "channels-feed": self._feed,
            "channels-work": self._work,
            "channels-stopping": self._stopping,
            "channels-gone": lambda: until_gone(self._socket),
            "channels-replaced": self._replaced,
        }
        try:
            farewell = await first_end(parts)
        except Exception as error:  # noqa: BLE001 - told by the close code
            farewell = self._reason(error)
        await self._close(farewell)

    def _reason(self, error: Exception) -> Farewell:
        match error:
            case NoFrame():
                return Farewell(CloseCode.UNREADABLE, str(error))
            case Crowded():
                return Farewell(CloseCode.TOO_SLOW, str(error))
            case Lagged():
                code = CloseCode.TOO_LARGE if error.too_large else CloseCode.TOO_SLOW
                return Farewell(code, str(error))
            case _:
                pass
        named = translate(error)
        return Farewell(close_code(self._services, named), named.code)

    async def _close(self, farewell: Farewell) -> None:
        if farewell.code == LEFT:
            return
        with anyio.move_on_after(_FAREWELL_S, shield=True):
            # The client may have left, or the server have closed it already.
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.close(int(farewell.code), _short(farewell.reason))

    async def _pour(self) -> Farewell:
        """What the kernel says, to the client, held back for it."""
        async with aclosing(self._channels.heard()) as messages:
            async for heard in messages:
                with anyio.move_on_after(PATIENCE_S) as patience:
                    await self._send(heard)
                if patience.cancelled_caught:
                    return Farewell(CloseCode.TOO_SLOW, "nothing was taken for too long")
        return Farewell(CloseCode.SHUT_DOWN, "the kernel was shut down")

    async def _send(self, heard: Heard) -> None:
        write = partial(write_frame, heard.channel, heard.header, heard.parts, v1=self._v1)
        beside = heard.size > BESIDE_BYTES
        frame = await to_thread.run_sync(write, limiter=self._thread) if beside else write()
        if isinstance(frame, str):
            await self._socket.send_text(frame)
        else:
            await self._socket.send_bytes(frame)

    async def _feed(self) -> Farewell:
        """What the client says, to the kernel."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return Farewell(LEFT)
            data: str | bytes | None = message.get("text")
            if data is None:
                data = message.get("bytes") or b""
            await self._channels.take(await self._read(data))

    async def _read(self, data: str | bytes) -> Order:
        read = partial(read_frame, data, v1=self._v1)
        if len(data) > BESIDE_BYTES:
            return await to_thread.run_sync(read, limiter=self._thread)
        return read()

    async def _work(self) -> Farewell:
        await self._channels.work()
        return Farewell(CloseCode.SHUT_DOWN)

    async def _stopping(self) -> Farewell:
        await self._services.stopping.wait()
        return Farewell(CloseCode.STOPPING, "the daemon stops; come back in a moment")

    async def _replaced(self) -> Farewell:
        await self._channels.visit.replaced.wait()
        return Farewell(CloseCode.REPLACED, "its session has come by another connection")


def largest_frame(path: str, otherwise: int) -> int:
    """How many bytes a frame of a client may have, by the path of its WebSocket."""
    return _LARGEST_FRAME if _CHANNELS.search(path) else otherwise


def _short(reason: str) -> str:
    """At most the 123 bytes that a close frame has room for."""
    return reason.encode()[:123].decode(errors="ignore")
