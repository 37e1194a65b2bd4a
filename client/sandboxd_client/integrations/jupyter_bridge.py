"""A kernel's five sockets on this machine, and behind them its channels in a sandbox.

Messages pass as they are; here they are only signed, and answers given to who asked.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import anyio
import zmq
import zmq.asyncio
from anyio.abc import TaskStatus
from jupyter_client.session import DELIM, Session
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

_V1 = "v1.kernel.websocket.jupyter.org"
_SIGNED = 4  # header, parent, metadata, content
_MOST_ASKED = 10_000
_MOST_UNHEARD = 1000
_LARGEST = 64 << 20
_LARGEST_FRAME = 16 << 20  # that the daemon takes
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_OVER = {401, 403, 404, 410}  # also as 4000 and more, of a WebSocket that is closed
_ASKED = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where a Jupyter speaks to its kernel. ports: those that it knows already, by their names in a
    connection file. secret: signs messages. session: of its own clients.
    """

    ip: str
    ports: Mapping[str, int]
    secret: bytes = field(repr=False)
    session: str


class Bridge:
    """See the module. url: of the channels. desk: where to listen.

    alive: whether the kernel runs, as far as anybody told. over: it will never again. A line that
    is cut loses nothing: what came meanwhile is heard then, and what may not have arrived is sent
    again under its id.
    """

    def __init__(self, url: str, *, key: str | None, desk: Desk) -> None:
        self.alive, self.over = True, False
        self.ports = dict(desk.ports)
        self._url = "ws" + url.removeprefix("http")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._desk = desk
        self._session = Session(key=desk.secret, check_pid=False)
        self._heard = ""  # the id of the kernel's last message
        self._unheard: OrderedDict[str, bytes] = (
            OrderedDict()
        )  # frames of which it said nothing yet
        self._line: WebSocketClientConnection | None = None
        self._up = anyio.Event()
        self._asked: OrderedDict[str, list[bytes]] = OrderedDict()  # who did, by message
        self._sockets: dict[str, zmq.asyncio.Socket] = {}

    def revive(self) -> None:
        """The kernel was started anew."""
        self.alive = not self.over
        self._unheard.clear()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Pass both ways until cancelled."""
        with zmq.asyncio.Context() as context:
            try:
                for name, kind in {**_ASKED, "iopub": zmq.PUB, "hb": zmq.REP}.items():
                    self._sockets[name] = self._bind(context, name, kind)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._beat, name="bridge-heartbeat")
                    for name in _ASKED:
                        tasks.start_soon(self._inward, name, name=f"bridge-{name}")
                    tasks.start_soon(self._hold, name="bridge-line")
                    task_status.started()
            finally:
                for socket in self._sockets.values():
                    socket.close(linger=0)

    def _bind(self, context: zmq.asyncio.Context, name: str, kind: int) -> zmq.asyncio.Socket:
        socket = context.socket(kind)
        socket.linger = 0
        if kind == zmq.PUB:
            socket.sndhwm = 0  # nothing that a kernel shows is dropped in silence
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that connects again
        address = f"tcp://{self._desk.ip}"
        if port := self.ports.get(f"{name}_port"):
            socket.bind(f"{address}:{port}")
        else:
            self.ports[f"{name}_port"] = socket.bind_to_random_port(address)
        return socket

    async def _beat(self) -> None:
        socket = self._sockets["hb"]
        while True:
            await socket.send_multipart(await socket.recv_multipart())

    # To the kernel.

    async def _inward(self, channel: str) -> None:
        socket = self._sockets[channel]
        while True:
            pieces = [bytes(piece) for piece in await socket.recv_multipart()]
            if DELIM not in pieces:
                continue
            at = pieces.index(DELIM)
            who, parts = pieces[:at], pieces[at + 1 :]
            if not self._is_signed(parts):
                continue  # somebody else on this machine
            msg_id = _field(parts[1], "msg_id")
            self._asked[msg_id] = who
            if len(self._asked) > _MOST_ASKED:
                self._asked.popitem(last=False)
            frame = _frame(channel, parts[1:])
            if len(frame) > _LARGEST_FRAME:
                await self._refuse(channel, who, parts[1])
                continue
            if channel != "stdin":  # no message answers a line of input
                self._unheard[msg_id] = frame
                if len(self._unheard) > _MOST_UNHEARD:
                    self._unheard.popitem(last=False)
            await self._send(frame)

    def _is_signed(self, parts: Sequence[bytes]) -> bool:
        if len(parts) < 1 + _SIGNED:
            return False
        return bool(self._session.sign(list(parts[1 : 1 + _SIGNED])) == parts[0])

    async def _send(self, frame: bytes) -> None:
        while not self.over:
            await self._up.wait()
            line = self._line
            if line is None:
                continue
            try:
                await line.write_message(frame, binary=True)
            except WebSocketClosedError:
                await anyio.sleep(_FIRST_PAUSE_S)
            else:
                return

    async def _refuse(self, channel: str, who: Sequence[bytes], header: bytes) -> None:
        """Who asks for what the line does not take hears an error, as from a kernel."""
        parent = json.loads(header)
        kind = _field(header, "msg_type")
        words = f"a {kind} is larger than {_LARGEST_FRAME >> 20} MiB"
        error = {"ename": "MessageTooLarge", "evalue": words, "traceback": [words]}
        busy, idle = ({"execution_state": state} for state in ("busy", "idle"))
        said: list[tuple[str, str, dict[str, Any]]] = [
            ("iopub", "status", busy),
            ("iopub", "error", error),
            (channel, kind.replace("_request", "_reply"), {"status": "error", **error}),
            ("iopub", "status", idle),
        ]
        for place, answer, content in said:
            to = [f"kernel.{answer}".encode()] if place == "iopub" else [*who]
            message = self._session.msg(answer, content, parent)
            await self._sockets[place].send_multipart([*to, *self._session.serialize(message)])

    # From the kernel.

    async def _hold(self) -> None:
        """A line to the kernel, come by again whenever it is cut: it goes on where it was."""
        pause_s = _FIRST_PAUSE_S
        while not self.over:
            try:
                self._line = line = await self._connect()
            except HTTPClientError as error:
                self._close(error.code)
            except OSError:
                pass
            else:
                await self._send_again(line)
                self._up.set()
                pause_s = _FIRST_PAUSE_S
                try:
                    while (frame := await line.read_message()) is not None:
                        await self._outward(_cut(frame))
                    self._close((line.close_code or 0) - 4000)
                finally:
                    self._line, self._up = None, anyio.Event()
                    line.close()
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _send_again(self, line: WebSocketClientConnection) -> None:
        """What may not have arrived. Where the line is cut meanwhile, it all happens again."""
        with suppress(WebSocketClosedError):
            for frame in list(self._unheard.values()):
                await line.write_message(frame, binary=True)

    async def _connect(self) -> WebSocketClientConnection:
        place = urlencode({"session_id": self._desk.session, "heard": self._heard})
        request = HTTPRequest(f"{self._url}?{place}", headers=self._headers, request_timeout=60)
        return await websocket_connect(
            request, subprotocols=[_V1], max_message_size=_LARGEST, ping_interval=30
        )

    def _close(self, status: int) -> None:
        if status in _OVER:
            self.alive, self.over = False, True
            self._up.set()  # nobody need wait for it any more

    async def _outward(self, message: tuple[str, list[bytes]]) -> None:
        channel, parts = message
        self._unheard.pop(_field(parts[1], "msg_id"), None)
        if not _is_of_daemon(parts):
            self._heard = _field(parts[0], "msg_id")
        signed = [DELIM, self._session.sign(parts[:_SIGNED]), *parts]
        if channel == "iopub":
            kind = _field(parts[0], "msg_type")
            await self._sockets["iopub"].send_multipart([f"kernel.{kind}".encode(), *signed])
            if kind == "status":
                self._hear(parts)
        elif who := self._asked.get(_field(parts[1], "msg_id")):
            await self._sockets[channel].send_multipart([*who, *signed])

    def _hear(self, parts: Sequence[bytes]) -> None:
        """The daemon tells of a death; the kernel itself of everything else."""
        if _is_of_daemon(parts):
            self.alive = _field(parts[3], "execution_state") != "dead"
            self._unheard.clear()  # the process that they were for is gone


def _is_of_daemon(parts: Sequence[bytes]) -> bool:
    return parts[1] == b"{}" and _field(parts[0], "session") == "sandboxd"


def _field(part: bytes, name: str) -> str:
    try:
        said: Any = json.loads(part)
    except ValueError:
        return ""
    value = said.get(name) if isinstance(said, dict) else None
    return value if isinstance(value, str) else ""


def _frame(channel: str, parts: Sequence[bytes]) -> bytes:
    """A frame of that protocol: how many offsets, the offsets of all pieces and of the end."""
    pieces = [channel.encode(), *parts]
    at = 8 * (len(pieces) + 2)
    offsets = [at]
    for piece in pieces:
        at += len(piece)
        offsets.append(at)
    numbers = (len(offsets), *offsets)
    return b"".join((*(number.to_bytes(8, "little") for number in numbers), *pieces))


def _cut(frame: str | bytes) -> tuple[str, list[bytes]]:
    data = frame.encode() if isinstance(frame, str) else frame
    count = int.from_bytes(data[:8], "little")
    offsets = [int.from_bytes(data[8 * (i + 1) : 8 * (i + 2)], "little") for i in range(count)]
    channel, *parts = (data[start:end] for start, end in pairwise(offsets))
    return channel.decode(), parts
