"""The answer to one request: plain JSON where it comes soon and alone, else a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from pydantic_core import to_json
from starlette.types import Receive, Send

from sandboxd.mcp.clients.answers import answer
from sandboxd.mcp.messages import Message

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """quiet_s: after so long without a word it becomes a stream, which says that it lives."""

    def __init__(self, receive: Receive, send: Send, *, quiet_s: float) -> None:
        self._receive = receive
        self._send = send
        self._quiet_s = quiet_s
        self._started = self._ended = False
        self._sending = anyio.Lock()

    @asynccontextmanager
    async def while_there(self) -> AsyncIterator[None]:
        """Cancel the block when its client goes away; then it ends without an error."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_gone, tasks.cancel_scope, name="mcp-caller-gone")
            tasks.start_soon(self._keep_alive, name="mcp-keepalive")
            yield
            tasks.cancel_scope.cancel()

    async def send(self, message: Message) -> None:
        """One message before the last."""
        await self._put(_event(message))

    async def end(self, message: Message, *, status: int) -> None:
        """The last message. status: of an answer that is not a stream."""
        async with self._sending:
            self._ended = True
            if not self._started:
                await answer(self._send, status, message)
                return
            last = {"type": "http.response.body", "body": _event(message), "more_body": False}
            await self._send(last)

    async def _put(self, data: bytes) -> None:
        async with self._sending:
            if self._ended:
                return
            if not self._started:
                self._started = True
                start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _until_gone(self, scope: anyio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(self._quiet_s)
            await self._put(b": ping\r\n\r\n")


def _event(message: Message) -> bytes:
    return b"event: message\r\ndata: " + to_json(message) + b"\r\n\r\n"
