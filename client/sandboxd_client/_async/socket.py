"""One WebSocket: messages both ways, pings answered. Knows nothing of what they mean."""

from __future__ import annotations

from collections import deque

from sandboxd.wire.http1 import AsyncStream, ConnectionLost
from sandboxd.wire.websocket import (
    CloseCode,
    Message,
    MessageDecoder,
    MessageError,
    Opcode,
    encode,
    encode_close,
    read_close,
)
from sandboxd_client._runtime import aio as runtime

_READ_BYTES = 1 << 17
_FAREWELL_S = 1.0


class SocketClosed(ConnectionLost):
    """The peer closed it, and said why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with {code} {reason}".rstrip(), sent=True)
        self.code = code


class AsyncSocket:
    """Binary messages over a line that the daemon has upgraded.

    One reader; senders take turns. A cancelled read loses nothing, a cancelled send closes the
    line, for half a message may be out.
    """

    def __init__(self, stream: AsyncStream, early: bytes) -> None:
        self._stream = stream
        self._early = early
        self._decoder = MessageDecoder()
        self._messages: deque[Message] = deque()
        self._turns = runtime.turns()
        self._pong: bytes | None = None  # owed to the daemon
        self._closed = False

    async def receive(self) -> bytes:
        """The next message. Raises SocketClosed, ConnectionLost, OSError."""
        while True:
            while not self._messages:
                try:
                    self._messages.extend(self._decoder.feed(await self._more()))
                except MessageError as error:
                    await self._leave(CloseCode.PROTOCOL_ERROR)
                    raise ConnectionLost(str(error), sent=True) from error
            message = self._messages.popleft()
            match message.opcode:
                case Opcode.BINARY | Opcode.TEXT:
                    return message.payload
                case Opcode.PING:
                    await self._answer(message.payload)
                case Opcode.CLOSE:
                    code, reason = read_close(message.payload)
                    await self._leave(CloseCode.NORMAL)
                    raise SocketClosed(code, reason)
                case _:
                    pass

    async def send(self, data: bytes) -> None:
        """Send a message; waits while the daemon takes none. Raises OSError."""
        async with self._turns:
            if self._closed:
                raise ConnectionLost("it is closed", sent=False)
            await self._send(encode(Opcode.BINARY, data))
            while self._pong is not None:
                payload, self._pong = self._pong, None
                await self._send(encode(Opcode.PONG, payload))

    async def aclose(self) -> None:
        """Say goodbye, if that can be said at once, and close. Idempotent."""
        if not self._closed:
            await self._leave(CloseCode.NORMAL)

    async def _more(self) -> bytes:
        if self._early:
            early, self._early = self._early, b""
            return early
        data = await self._stream.receive(_READ_BYTES)
        if not data:
            raise ConnectionLost("the daemon cut the line", sent=True)
        return data

    async def _answer(self, payload: bytes) -> None:
        """Answer a ping. While a sender waits for the daemon that would wait too: it does it."""
        self._pong = payload
        if self._turns.locked():
            return
        async with self._turns:
            if self._pong is not None:
                self._pong = None
                await self._send(encode(Opcode.PONG, payload))

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except BaseException:
            self._closed = True
            await self._stream.aclose()
            raise

    async def _leave(self, code: int) -> None:
        self._closed = True
        with runtime.shielded(_FAREWELL_S):
            try:
                if not self._turns.locked():
                    async with self._turns:
                        await self._stream.send(encode_close(code))
            except OSError:
                pass  # then it is closed already
        await self._stream.aclose()
