"""A WebSocket to a server inside: the handshake passed on as HTTP, then bytes both ways.

Frames, extensions, pings and close codes are the two ends' own. Only to say goodbye does the daemon
put in a frame of its own, between two of the server's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import ByteStream
from starlette.types import Send

from sandboxd.api.ports.answered import response_headers
from sandboxd.api.ports.asked import Asked, request_head
from sandboxd.api.ports.borders import Borders, close_frame
from sandboxd.api.ports.exchange import BROKEN, no_answer
from sandboxd.api.ports.place import Place
from sandboxd.api.ports.reading import AnswerReader, NotHttp
from sandboxd.errors import SandboxdError
from sandboxd.execution.ports import OpenPort

_READ_BYTES = 1 << 16
_HANDSHAKE_S = 30.0
_FAREWELL_S = 2.0  # for the other side to end too, once one has
_LAST_WORDS_S = 10.0  # for a slow caller to take what a server said before it went
_STOPPING = 1012
"""The daemon stops: come back in a moment."""


class Tunnel:
    """See the module. caller: the bytes of its connection; send: for answers to its handshake."""

    def __init__(
        self,
        port: OpenPort,
        place: Place,
        asked: Asked,
        *,
        caller: ByteStream,
        send: Send,
        stopping: anyio.Event,
    ) -> None:
        self._port = port
        self._place = place
        self._asked = asked
        self._caller = caller
        self._send = send
        self._stopping = stopping
        self._borders = Borders()
        self._caller_done = False

    async def run(self) -> None:
        """Until either end is done. Raises, only before the handshake is answered, `conflict` with
        status 502 for what is no answer, `timeout`, and what became of the sandbox.
        """
        reader = AnswerReader(method="GET")
        with anyio.fail_after(_HANDSHAKE_S):
            piece = await self._shake_hands(reader)
        if not reader.switched:
            await self._refused(reader, piece)
            return
        headers = response_headers(101, reader.headers, self._place, trusted=True)
        await self._send({"type": "websocket.accept", "headers": headers})
        await self._join(reader.rest)

    async def _shake_hands(self, reader: AnswerReader) -> bytes:
        stream, piece = self._port.stream, b""
        try:
            await stream.send(request_head(self._asked, self._place, upgrade=True))
            while not reader.status:
                piece = reader.feed(await stream.receive(_READ_BYTES))
        except (anyio.EndOfStream, *BROKEN) as error:
            if (fate := await self._port.fate()) is not None:
                raise fate from error
            raise no_answer(self._place, "closed", "closed the connection") from error
        except NotHttp as error:
            raise no_answer(self._place, "no_http", f"does not answer in HTTP: {error}") from error
        return piece

    async def _refused(self, reader: AnswerReader, piece: bytes) -> None:
        """The server wants no WebSocket: its answer as it is."""
        headers = response_headers(
            reader.status, reader.headers, self._place, trusted=self._asked.trusted
        )
        start = {"type": "websocket.http.response.start", "status": reader.status}
        await self._send({**start, "headers": headers})
        while True:
            body = {"type": "websocket.http.response.body", "body": piece}
            await self._send({**body, "more_body": not reader.complete})
            if reader.complete:
                return
            try:
                piece = reader.feed(await self._port.stream.receive(_READ_BYTES))
            except (NotHttp, anyio.EndOfStream, *BROKEN):
                return  # the end of the connection says the rest

    async def _join(self, early: bytes) -> None:
        """Pass bytes both ways until one end is done."""
        ends: list[SandboxdError | int | None] = []
        async with anyio.create_task_group() as tasks:

            async def first(part: Callable[[], Awaitable[SandboxdError | int | None]]) -> None:
                ends.append(await part())
                tasks.cancel_scope.cancel()

            tasks.start_soon(first, self._until_over, name="tunnel-over")
            tasks.start_soon(first, self._until_stopped, name="tunnel-stopping")
            tasks.start_soon(first, self._inward, name="tunnel-in")
            await first(lambda: self._outward(early))
        match ends[0]:
            case SandboxdError() as error:
                await self._say_goodbye(4000 + (error.status or 500), error.code)
            case int(code):
                await self._say_goodbye(code, "the daemon stops")
            case None:
                pass

    async def _inward(self) -> None:
        """What the caller sends, to the server. Who has ended gives the other side a moment."""
        stream = self._port.stream
        while True:
            try:
                data = await self._caller.receive(_READ_BYTES)
            except anyio.EndOfStream:
                self._caller_done = True
                with suppress(*BROKEN):
                    await stream.send_eof()
                await anyio.sleep(_FAREWELL_S)
                return
            except BROKEN:
                return
            try:
                await stream.send(data)
            except BROKEN:
                await self._until_gone()
                return

    async def _outward(self, early: bytes) -> SandboxdError | None:
        """What the server sends, to the caller. Returns what became of the sandbox, if it is that
        which ended it.
        """
        data = early
        while True:
            try:
                self._borders.feed(data)
                await self._caller.send(data)
            except BROKEN:
                return None
            try:
                data = await self._port.stream.receive(_READ_BYTES)
            except (anyio.EndOfStream, *BROKEN):
                if self._borders.closed or self._caller_done:
                    return None
                return await self._port.fate()

    async def _until_gone(self) -> None:
        """The server takes no more. What it said before is still on its way, and why it ended is
        for `_outward` to find out.
        """
        with anyio.move_on_after(_LAST_WORDS_S), suppress(anyio.EndOfStream, *BROKEN):
            while True:
                await self._caller.receive(_READ_BYTES)

    async def _until_over(self) -> SandboxdError:
        return await self._port.until_over()

    async def _until_stopped(self) -> int:
        await self._stopping.wait()
        return _STOPPING

    async def _say_goodbye(self, code: int, reason: str) -> None:
        """Close in the server's place, if nothing of a frame of its own is missing."""
        if self._borders.at_border and not self._borders.closed:
            with anyio.move_on_after(_FAREWELL_S, shield=True), suppress(*BROKEN):
                await self._caller.send(close_frame(code, reason))
