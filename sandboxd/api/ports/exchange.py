"""One HTTP request to a server inside, and its answer: both bodies pass as they come.

Whoever is slow, on either side, holds the other back: one piece is on its way each way, no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from starlette.types import Receive, Send

from sandboxd.api.ports.answered import response_headers
from sandboxd.api.ports.asked import Asked, request_head
from sandboxd.api.ports.place import Place
from sandboxd.api.ports.reading import AnswerReader, NotHttp
from sandboxd.errors import SandboxdError
from sandboxd.execution.ports import OpenPort
from sandboxd.wire.codes import ErrorCode, Fault

READ_BYTES = 1 << 17
BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_GO_ON_S = 1.0  # for a server to say `100 Continue`; many never do
LINGER_S = 3.0  # for what is on its way when the daemon stops


class Cut(Exception):
    """The answer cannot be finished, so its connection must be cut."""


class CallerLeft(Exception):
    """Nobody reads the answer any more."""


class Exchange:
    """See the module. receive, send: the caller's side, by ASGI. stopping: the daemon's."""

    def __init__(
        self,
        port: OpenPort,
        place: Place,
        asked: Asked,
        *,
        receive: Receive,
        send: Send,
        stopping: anyio.Event,
    ) -> None:
        self._port = port
        self._place = place
        self._asked = asked
        self._receive = receive
        self._send = send
        self._stopping = stopping
        self._reader = AnswerReader(method=asked.method)
        self._started = False
        self._may_send = anyio.Event()
        self._end: Exception | None = None

    async def run(self) -> None:
        """Until the answer is whole. Raises CallerLeft; Cut for an answer that had begun; before
        that `conflict` with status 502 for what is no answer, and what became of the sandbox.
        """
        async with anyio.create_task_group() as tasks:

            async def first(part: Callable[[], Awaitable[None]]) -> None:
                try:
                    await part()
                except Exception as error:  # noqa: BLE001 - raised below, outside the group
                    self._end = self._end or error
                tasks.cancel_scope.cancel()

            tasks.start_soon(first, self._until_over, name="port-over")
            tasks.start_soon(first, self._until_stopped, name="port-stopping")
            tasks.start_soon(first, self._ask, name="port-request")
            await first(self._answer)
        if self._end is None:
            return
        if self._started and not isinstance(self._end, CallerLeft):
            raise Cut from self._end
        raise self._end

    async def _ask(self) -> None:
        """Pass the request on; then wait until the caller leaves. Raises CallerLeft."""
        head = request_head(self._asked, self._place)
        headers = dict(self._asked.headers)
        chunked = b"transfer-encoding" in headers
        taken = await self._taken(head)
        if headers.get(b"expect", b"").lower() == b"100-continue":
            with anyio.move_on_after(_GO_ON_S):
                await self._may_send.wait()
        missing = 0 if chunked else int(headers.get(b"content-length", b"0"))
        while True:
            message = await self._receive()  # which tells the caller to go on
            if message["type"] == "http.disconnect":
                raise CallerLeft
            piece: bytes = message.get("body", b"")
            ended = not message.get("more_body", False)
            # A server that takes no more may have answered: what still comes is thrown away.
            if taken and chunked:
                taken = await self._taken(_chunk(piece, last=ended))
            elif taken:
                taken = await self._taken(piece)
            missing -= len(piece)
            if ended and missing > 0:  # our server drops it where another protocol is asked for
                raise SandboxdError(
                    ErrorCode.BAD_REQUEST, "the body did not come: ask for no upgrade"
                )
            taken = taken and not ended

    async def _taken(self, data: bytes) -> bool:
        try:
            if data:
                await self._port.stream.send(data)
        except BROKEN:
            return False
        return True

    async def _answer(self) -> None:
        reader = self._reader
        while not reader.complete:
            try:
                piece = reader.feed(await self._port.stream.receive(READ_BYTES))
            except (anyio.EndOfStream, *BROKEN) as error:
                piece = b""
                await self._ended(is_cut=not isinstance(error, anyio.EndOfStream))
            except NotHttp as error:
                raise no_answer(
                    self._place, "no_http", f"does not answer in HTTP: {error}"
                ) from error
            if reader.go_on:
                self._may_send.set()
            if reader.status and not self._started:
                await self._start()
            if piece or reader.complete:
                await self._send(
                    {
                        "type": "http.response.body",
                        "body": piece,
                        "more_body": not reader.complete,
                    }
                )

    async def _start(self) -> None:
        status = self._reader.status
        if not 200 <= status < 600:
            raise no_answer(self._place, "no_http", f"answered with status {status}, unasked")
        headers = response_headers(
            status, self._reader.headers, self._place, trusted=self._asked.trusted
        )
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _ended(self, *, is_cut: bool) -> None:
        """The server ended the connection, or it broke. Raises unless the answer is whole so."""
        reader = self._reader
        if reader.status and not reader.until_end:
            raise Cut
        if (fate := await self._port.fate()) is not None:
            raise fate
        if is_cut or not reader.feed_end():
            raise no_answer(self._place, "closed", "closed the connection before it answered")

    async def _until_over(self) -> None:
        raise await self._port.until_over()

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        await anyio.sleep(LINGER_S)
        raise SandboxdError(
            ErrorCode.SHUTTING_DOWN,
            "this daemon is shutting down; what was asked inside may go on",
            retry_safe=False,
            retry_after_s=2.0,
        )


def no_answer(place: Place, reason: str, what: str) -> SandboxdError:
    """The server inside did not answer as HTTP wants it: its own doing, and so the agent's."""
    return SandboxdError(
        ErrorCode.CONFLICT,
        f"the server on port {place.port} inside {what}",
        fault=Fault.AGENT,
        mask=False,
        sandbox_id=place.sandbox_id,
        details={"reason": reason, "port": place.port},
        status=502,
    )


def _chunk(data: bytes, *, last: bool) -> bytes:
    framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return framed + b"0\r\n\r\n" if last else framed
