"""A command's input and output at once, over as many connections as it takes."""

from __future__ import annotations

import json
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from sandboxd.wire.http1 import ConnectionLost
from sandboxd_client._async.api import AsyncApi, unreachable
from sandboxd_client._async.socket import AsyncSocket
from sandboxd_client._core.calls import Call, encode, path_of
from sandboxd_client._core.fields import needed
from sandboxd_client._core.input_tail import InputTail
from sandboxd_client._core.retries import Patience
from sandboxd_client._runtime import aio as runtime
from sandboxd_client.errors import (
    ApiUnreachable,
    Conflict,
    Forbidden,
    SandboxdError,
    error_from_problem,
)
from sandboxd_client.events import Ended, ExecEvent, Gap, Stderr, Stdout
from sandboxd_client.results import ExecResult

_INPUT = b"\0"  # how a frame of input begins
_PIECE_BYTES = 1 << 15  # a piece that is cut is sent again as a whole
_SILENCE_S = 60.0  # the daemon pings every 20 s: after three it is cut
_STEADY_S = 10.0  # a line that lived so long was sound: what cuts it is news
_SETTLE_S = 5.0  # for a command to take what was sent last
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.5


class _Line:
    """One connection. sent: up to which offset of the input it has carried it."""

    __slots__ = ("sent", "since", "socket")

    def __init__(self, socket: AsyncSocket, *, sent: int) -> None:
        self.socket = socket
        self.sent = sent
        self.since = runtime.now()


class AsyncTerminal:
    """An attachment to a command: iterate for its output, `send` its input.

    Events come in order, each byte once, until `Ended`; connections that are cut are opened again
    and go on where they were. One task reads, another may send. Leaving its `with` ends nothing:
    the command runs on, and is given what was sent, unless it takes none of it for 5 s. Their `seq`
    is 0.
    """

    def __init__(
        self,
        api: AsyncApi,
        parts: tuple[str, ...],
        *,
        stdout: int,
        stderr: int,
        shared: bool,
    ) -> None:
        """parts: of the command's path."""
        self._api = api
        self._parts = parts
        self._at = {"stdout": stdout, "stderr": stderr}
        self._shared = shared
        self._tail: InputTail | None = None  # None: input is not ours to count, or not taken
        self._refused: SandboxdError | None = None  # why there can be no input
        self._held: _Line | None = None
        self._told: SandboxdError | None = None  # why the daemon is about to close
        self._patience: Patience | None = None  # while nothing comes
        self._ended = False
        self._sending = runtime.turns()
        self._mending = runtime.turns()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._parts[-1]} at {self._at}>"

    async def __aenter__(self) -> Self:
        if not self._shared:
            try:
                self._tail = InputTail(await self._taken())
            except (Conflict, Forbidden) as error:  # without open input; a token that only reads
                self._refused = error
        self._held = await self._api.trying(self._attach(None), self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is None:
            return
        await self._held.socket.aclose()
        if kind is None and self._tail is not None and not self._ended:
            with runtime.shielded(_SETTLE_S), suppress(SandboxdError):
                await self._settle()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ExecEvent:
        """The next event; the last is Ended. Raises typed errors where the sandbox failed."""
        while not self._ended:
            line = self._line
            try:
                event = self._read(await line.socket.receive())
            except OSError as lost:
                await self._mend(line, lost)
                await self._flush_unless_sending()
                continue
            if event is not None:
                self._patience = None
                return event
        raise StopAsyncIteration

    async def send(self, data: bytes | str) -> None:
        """Type it. Waits while the command takes none; what a command that closed its input did
        not want is thrown away. Raises Conflict where there is no input to write to.

        Once a byte, however often the connection is cut, as long as nobody else writes: where
        several do, attach as `shared`, and what was on its way at a cut may be lost.
        """
        if self._refused is not None:
            raise self._refused
        data = data.encode() if isinstance(data, str) else data
        async with self._sending:
            for start in range(0, len(data), _PIECE_BYTES):
                await self._push(data[start : start + _PIECE_BYTES])

    async def close_input(self) -> None:
        """End of file on its input. On a terminal: as if Ctrl-D was typed."""
        if self._refused is not None:
            raise self._refused
        async with self._sending:
            if self._tail is not None:
                self._tail.eof = True
                await self._flush(self._tail)
            else:
                await self._push(b"")

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal. Raises Conflict where it has none, or has ended."""
        body = encode({"rows": rows, "cols": cols})
        path = path_of(*self._parts, "resize")
        await self._api.json(Call(method="POST", path=path, body=body, safe=True))

    async def signal(self, name: str = "INT") -> bool:
        """Signal what is in its foreground; `KILL` the whole tree. False if it had ended.

        It does not wait behind input. Not sent again if the answer is lost: ApiUnreachable.
        """
        path = path_of(*self._parts, "signal")
        call = Call(method="POST", path=path, body=encode({"signal": name}), ends=True)
        told = await self._api.json(call)
        return bool(told.get("delivered", True))

    @property
    def _line(self) -> _Line:
        if self._held is None:
            raise RuntimeError(
                "enter the terminal first: `async with process.attach() as terminal`"
            )
        return self._held

    # ------------------------------------------------------------------------------- output

    def _read(self, message: bytes) -> ExecEvent | None:
        data = message[1:]
        match message[0] if message else -1:
            case 1:
                return Stdout(0, self._passed("stdout", len(data)), data)
            case 2:
                return Stderr(0, self._passed("stderr", len(data)), data)
            case 3:
                return self._read_json(json.loads(data))
            case _:
                return None

    def _read_json(self, said: dict[str, Any]) -> ExecEvent | None:
        if "exit" in said:
            self._ended = True
            return Ended(0, ExecResult.from_json(said["exit"]))
        if "gap" in said:
            stream: Literal["stdout", "stderr"] = needed(said["gap"], "stream")
            offset, size = needed(said["gap"], "offset"), needed(said["gap"], "bytes")
            self._at[stream] = offset + size
            return Gap(0, stream, offset, size)
        if "error" in said:
            self._told = error_from_problem(said["error"])
        return None

    def _passed(self, stream: str, count: int) -> int:
        offset = self._at[stream]
        self._at[stream] = offset + count
        return offset

    # -------------------------------------------------------------------------------- input

    async def _push(self, piece: bytes) -> None:
        if self._tail is not None:
            await self._make_room(self._tail)
            self._tail.add(piece)
            await self._flush(self._tail)
            return
        while True:
            line = self._line
            try:
                await line.socket.send(_INPUT + piece)
                return
            except OSError as lost:
                await self._mend(line, lost)

    async def _make_room(self, tail: InputTail) -> None:
        """Let go of what was taken; while that is too little, wait for the command to read."""
        pause_s = _FIRST_LOOK_S
        while tail.is_full:
            taken = await self._taken()
            async with self._mending:  # a new line begins where the tail does: not in between
                tail.confirm(min(taken, self._line.sent))
            if tail.is_full:
                await runtime.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_LOOK_S)

    async def _flush(self, tail: InputTail) -> None:
        """Send what was not sent on the line that there is now. Only in turn."""
        while True:
            line = self._line
            piece = tail.piece_at(line.sent, limit=_PIECE_BYTES)
            if piece is None:
                return
            try:
                await line.socket.send(_INPUT + piece)
                line.sent += len(piece) or 1
            except OSError as lost:
                await self._mend(line, lost)

    async def _settle(self) -> None:
        """Hand over what was on its way when the line was closed. What was taken is skipped."""
        tail = self._tail
        assert tail is not None
        await self._confirm()
        rest = tail.piece_at(tail.start, limit=tail.end - tail.start)
        if rest is not None:
            query = {"offset": tail.start, "eof": tail.eof}
            await self._api.json(self._input(rest, query=query))

    async def _confirm(self) -> None:
        """Let go of what was taken, so that the next line carries no more than it must."""
        if self._tail is not None:
            try:
                self._tail.confirm(await self._taken())
            except Conflict:  # its input is closed: nothing of it will be taken
                self._tail.confirm(self._tail.end)

    async def _taken(self) -> int:
        """How many bytes of input the command has been given in all."""
        return int(needed(await self._api.json(self._input(b"")), "offset"))

    def _input(self, data: bytes, *, query: dict[str, Any] | None = None) -> Call:
        path = path_of(*self._parts, "stdin", query=query or {})
        kind = "application/octet-stream"
        return Call(method="POST", path=path, body=data, content_type=kind, safe=True)

    # --------------------------------------------------------------------------------- lines

    async def _open(self) -> _Line:
        start = None if self._tail is None else self._tail.start
        socket = await self._api.socket(self._attach(start))
        return _Line(socket, sent=start or 0)

    def _attach(self, start: int | None) -> Call:
        path = path_of(*self._parts, "attach", query={**self._at, "stdin": start})
        return Call(method="GET", path=path, safe=True, silence_s=_SILENCE_S)

    async def _mend(self, line: _Line, lost: OSError) -> None:
        """Open another line in the place of one that broke, unless somebody has. Raises the typed
        error that the daemon told, and ApiUnreachable once `patience_s` is over.
        """
        async with self._mending:
            if self._held is not line:
                return
            await line.socket.aclose()
            error: SandboxdError = self._told or _unreachable(lost)
            self._told = None
            if self._patience is None or runtime.now() - line.since > _STEADY_S:
                self._patience = Patience(deadline=runtime.now() + self._api.patience_s)
            while (pause := self._patience.pause(error, safe=True, now=runtime.now())) is not None:
                await runtime.sleep(pause)
                try:
                    await self._confirm()
                    self._held = await self._open()
                    return
                except ConnectionLost as again:
                    error = unreachable(again)
                except SandboxdError as told:
                    error = told
            raise error

    async def _flush_unless_sending(self) -> None:
        """After the reader mended a line; else whoever sends at this moment does it."""
        if self._tail is not None and not self._sending.locked():
            async with self._sending:
                await self._flush(self._tail)


def _unreachable(lost: OSError) -> ApiUnreachable:
    if not isinstance(lost, ConnectionLost):
        lost = ConnectionLost(str(lost) or type(lost).__name__, sent=True)
    return unreachable(lost)
