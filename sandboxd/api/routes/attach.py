"""The `attach` WebSocket: a command's output from byte offsets on, live, and its input.

Until it is accepted, whatever is wrong is a problem as on any route; after that a JSON frame tells
it, and a close code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated
from urllib.parse import parse_qsl

import anyio
from fastapi import APIRouter, Query, WebSocket
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from sandboxd.api import render
from sandboxd.api.auth import Principal
from sandboxd.api.problems import problem_body, translate
from sandboxd.api.schemas.commands import AttachOrder
from sandboxd.api.services import Services
from sandboxd.api.sockets.ends import LEFT, Farewell, close_code, first_end, until_gone
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.guest.attachment import Attachment, Ended, Gap, OutputEvent, Piece, Started
from sandboxd.wire.codes import ErrorCode
from sandboxd.wire.frames import FrameKind

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/execs", tags=["execs"], route_class=StrictRoute
)

PATIENCE_S = 30.0  # a reader that takes nothing for so long is dropped
_FAREWELL_S = 2.0
_MESSAGE_BYTES = 1 << 16  # so that a slow reader need not take a megabyte within its patience
_MAX_OFFSET = 1 << 62
_DIGITS = re.compile(r"^[0-9]{1,19}$")
_Offset = Annotated[int, Query(ge=0, le=_MAX_OFFSET)]


class CloseCode(IntEnum):
    """How the daemon closes. Errors of ours close with 4000 and their HTTP status (4410: the lease
    or the sandbox is over).
    """

    ENDED = 1000  # the command ended, and its record was sent
    TEXT = 1003
    STOPPING = 1012  # the daemon stops, the command runs on: attach again in a moment
    TOO_SLOW = 4408


@dataclass(frozen=True, slots=True)
class _Places:
    """Byte offsets to begin at. stdin None: input goes behind what was taken, whoever wrote it."""

    stdin: int | None = None
    stdout: int = 0
    stderr: int = 0


@router.get(
    "/{exec_id}/attach",
    operation_id="attach_exec",
    response_class=Response,
    responses={101: {"description": "A WebSocket; `docs/attach.md` has its frames."}},
)
async def attach_without_upgrade(
    sandbox_id: str,
    exec_id: str,
    stdout: _Offset = 0,
    stderr: _Offset = 0,
    stdin: _Offset | None = None,
) -> Response:
    """A WebSocket: output from byte offsets on, then live; input, signals and sizes.

    `stdin`: the offset at which this reader's input begins, so that what was taken is skipped.
    """
    raise SandboxdError(
        ErrorCode.BAD_REQUEST, "this is a WebSocket: send `Upgrade: websocket`", status=426
    )


@router.websocket("/{exec_id}/attach")
async def attach_exec(socket: WebSocket, sandbox_id: str, exec_id: str) -> None:
    """See `attach_without_upgrade`."""
    services: Services = socket.app.state.services
    places = _places(socket)
    session = _Session(socket, services, sandbox_id=sandbox_id, exec_id=exec_id, stdin=places.stdin)
    farewell = Farewell(LEFT)
    try:
        async with services.commands.attach(
            sandbox_id,
            exec_id,
            owner=session.caller.owner,
            offsets=(places.stdout, places.stderr),
        ) as attachment:
            await socket.accept()
            session.accepted = True
            with services.metrics.attached.track_inprogress():
                farewell = await session.run(attachment)
    except Exception as error:
        if not session.accepted:
            raise
        await session.fail(translate(error))
    else:
        await session.close(farewell.code, farewell.reason)


class _Session:
    """One attached reader."""

    def __init__(
        self,
        socket: WebSocket,
        services: Services,
        *,
        sandbox_id: str,
        exec_id: str,
        stdin: int | None,
    ) -> None:
        self._socket = socket
        self._services = services
        self._sandbox_id = sandbox_id
        self._exec_id = exec_id
        self._stdin = stdin
        self.caller: Principal = socket.scope["state"]["principal"]
        self.accepted = False

    async def run(self, attachment: Attachment) -> Farewell:
        """Pass both ways until the first reason to end. Raises what went wrong."""
        return await first_end(
            {
                "attach-output": lambda: self._pour(attachment),
                "attach-input": lambda: self._feed(attachment),
                "attach-stopping": self._stopping,
                "attach-gone": lambda: until_gone(self._socket),
            }
        )

    async def fail(self, error: SandboxdError) -> None:
        """Tell the error in a frame, and close with its code."""
        await self.close(close_code(self._services, error), error.code, telling=error)

    async def close(self, code: int, reason: str, *, telling: SandboxdError | None = None) -> None:
        """Close, unless the reader has left. Bounded, and never raises what a lost line raises."""
        self._services.metrics.detached.labels(str(int(code))).inc()
        if code == LEFT:
            return
        with anyio.move_on_after(_FAREWELL_S, shield=True):
            try:
                if telling is not None:
                    await self._send_json({"error": self._problem(telling)})
                await self._socket.close(code, reason)
            except (WebSocketDisconnect, RuntimeError):
                pass  # the reader left, or the server has closed it already

    async def _pour(self, attachment: Attachment) -> Farewell:
        """Output to the reader, held back for it; at last the record."""
        async for event in attachment:
            with anyio.move_on_after(PATIENCE_S) as patience:
                if await self._tell(event):
                    return Farewell(CloseCode.ENDED)
            if patience.cancelled_caught:
                return Farewell(CloseCode.TOO_SLOW, "nothing was taken for too long")
        raise AssertionError("an attachment ends with `Ended` or an error")

    async def _tell(self, event: OutputEvent) -> bool:
        """Send one event; whether it was the last."""
        match event:
            case Piece(stream=stream, data=data):
                kind = FrameKind.STDOUT if stream == "stdout" else FrameKind.STDERR
                for start in range(0, len(data), _MESSAGE_BYTES):
                    await self._send(kind, data[start : start + _MESSAGE_BYTES])
            case Gap(stream=stream, offset=offset, size=size):
                await self._send_json({"gap": {"stream": stream, "offset": offset, "bytes": size}})
            case Ended(record=record):
                await self._send_json({"exit": render.execution(record, output=False)})
                return True
            case Started():
                pass
        return False

    async def _feed(self, attachment: Attachment) -> Farewell:
        """Frames of the reader to the command, each when the one before was taken."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return Farewell(LEFT)
            data: bytes | None = message.get("bytes")
            if data is None:
                return Farewell(CloseCode.TEXT, "frames are binary")
            if self.caller.rights == "read":
                raise SandboxdError(ErrorCode.FORBIDDEN, "this token may only read")
            match data[:1]:
                case b"\0":
                    await self._write(attachment, data[1:])
                case b"\3":
                    await self._obey(_order(data[1:]))
                case _:
                    raise SandboxdError(
                        ErrorCode.BAD_REQUEST, "a frame begins with 0 (stdin) or 3 (JSON)"
                    )

    async def _write(self, attachment: Attachment, data: bytes) -> None:
        """Input; empty is its end. What a command that closed its input did not want is lost."""
        if self._stdin is not None:
            offset, self._stdin = self._stdin, self._stdin + len(data)
            try:
                await self._services.commands.write_stdin(
                    self._sandbox_id,
                    self._exec_id,
                    data,
                    owner=self.caller.owner,
                    offset=offset,
                    eof=not data,
                )
            except SandboxdError as error:
                if error.code is not ErrorCode.CONFLICT or error.status != 410:
                    raise
        elif data:
            await attachment.send_stdin(data)
        else:
            await attachment.close_stdin()

    async def _obey(self, order: AttachOrder) -> None:
        """A size or a signal. One that cannot be obeyed is told, and the attachment goes on."""
        commands, owner = self._services.commands, self.caller.owner
        try:
            if order.resize is not None:
                rows, cols = order.resize.rows, order.resize.cols
                await commands.resize(
                    self._sandbox_id, self._exec_id, rows=rows, cols=cols, owner=owner
                )
            if order.signal is not None:
                name = order.signal.removeprefix("SIG")
                await commands.signal(self._sandbox_id, self._exec_id, name, owner=owner)
        except SandboxdError as error:
            if error.code in {ErrorCode.LEASE_ENDED, ErrorCode.SANDBOX_LOST}:
                raise
            await self._send_json({"error": self._problem(error)})

    async def _stopping(self) -> Farewell:
        await self._services.stopping.wait()
        return Farewell(CloseCode.STOPPING, "the daemon stops; attach again in a moment")

    async def _send(self, kind: FrameKind, data: bytes) -> None:
        await self._socket.send_bytes(bytes((kind,)) + data)

    async def _send_json(self, said: dict[str, object]) -> None:
        await self._send(FrameKind.CONTROL, to_json(said))

    def _problem(self, error: SandboxdError) -> dict[str, object]:
        return problem_body(error, request_id=self._socket.scope["state"]["request_id"])


def _places(socket: WebSocket) -> _Places:
    """Where to begin. Raises `bad_request` for what is no offset, and for any other parameter."""
    found: dict[str, int] = {}
    query = socket.scope["query_string"].decode("latin-1")
    for name, value in parse_qsl(query, keep_blank_values=True):
        known = name in {"stdin", "stdout", "stderr"}
        if not known or not (_DIGITS.match(value) and int(value) <= _MAX_OFFSET):
            field = name[:200]
            problem = "give a byte offset" if known else "there is no such parameter"
            raise SandboxdError(
                ErrorCode.BAD_REQUEST,
                f"{field}: {problem}",
                details={"problems": [{"field": field, "problem": problem}]},
            )
        found[name] = int(value)
    return _Places(**found)


def _order(payload: bytes) -> AttachOrder:
    try:
        return AttachOrder.model_validate_json(payload)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
