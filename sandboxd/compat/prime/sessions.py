"""`command_session.CommandSession`: commands of the VM dialect, over ConnectRPC.

A session is a command of ours whose id follows from the name that the client gave it; so a Start
that is sent again attaches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api.auth import Principal
from sandboxd.api.services import Services, here
from sandboxd.api.streams import waiting
from sandboxd.compat.connect.answers import reply, stream, timeout_s, unary, whole
from sandboxd.compat.connect.envelopes import MAX_MESSAGE_BYTES, Envelopes, envelope, last
from sandboxd.compat.prime import messages
from sandboxd.compat.prime.messages import Selector, StartRequest
from sandboxd.compat.prime.running import begin, first_id, lacks_program, other_id
from sandboxd.compat.prime.session_book import Session, SessionBook
from sandboxd.compat.prime.session_events import Watched, events_of
from sandboxd.errors import SandboxdError
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import is_caller_id, new_id
from sandboxd.wire.codes import ErrorCode

_PREFIX = "prime-"
_OUTPUT_BYTES = 1 << 20
T = TypeVar("T")


class CommandSessions:
    """The service's methods, as routes."""

    def __init__(self) -> None:
        self._book = SessionBook()
        self.router = APIRouter(
            prefix="/v1/sandboxes/{sandbox_id}/prime/command_session.CommandSession",
            include_in_schema=False,
        )
        for name, call in (
            ("Start", self.start),
            ("Connect", self.connect),
            ("SendInput", self.send_input),
            ("StreamInput", self.stream_input),
            ("SendSignal", self.send_signal),
            ("Update", self.update),
            ("List", self.list_running),
        ):
            self.router.add_api_route(
                f"/{name}", call, methods=["POST"], operation_id=f"prime_{name}"
            )

    async def start(self, request: Request, sandbox_id: str) -> Response:
        """Create or attach, and everything that the command does from its beginning."""
        services, caller = here(request)

        async def open_session(asked: StartRequest) -> Watched:
            command = _command(asked, within_s=timeout_s(request))
            record = await begin(services, sandbox_id, command, owner=caller.owner)
            session = self._book.of((sandbox_id, record.exec_id)) if asked.session else Session()
            session.tty = asked.tty is not None
            return Watched(record, session, begun=True)

        return await _watched(request, sandbox_id, messages.read_start, open_session)

    async def connect(self, request: Request, sandbox_id: str) -> Response:
        """Come back to a session: what it does from where it was left, and its end if it ended."""
        services, caller = here(request)

        async def open_session(selector: Selector) -> Watched:
            record = await _found(services, sandbox_id, selector, caller)
            session = self._book.of((sandbox_id, record.exec_id))
            return Watched(record, session, after=session.sent)

        return await _watched(request, sandbox_id, messages.read_selector, open_session)

    async def send_input(self, request: Request, sandbox_id: str) -> Response:
        """Write to a session's input, once for each id."""
        services, caller = here(request)

        async def write() -> bytes:
            asked = await whole(request, messages.read_input)
            assert asked.selector is not None
            record = await _found(services, sandbox_id, asked.selector, caller)
            session = self._book.of((sandbox_id, record.exec_id))
            place = _Place(services, sandbox_id, record.exec_id, caller)
            # Input may wait for its reader for as long as its writer waits for that.
            await waiting(
                request, lambda: _write(place, session, asked.data, input_id=asked.input_id)
            )
            return b""

        return await unary(request, write)

    async def stream_input(self, request: Request, sandbox_id: str) -> Response:
        """Write to a session's input, piece by piece as it comes."""
        services, caller = here(request)

        async def write_all() -> bytes:
            place: _Place | None = None
            async for message in _messages(request):
                asked = messages.read_stream_input(message)
                if asked is None:
                    continue
                if asked.selector is not None:
                    record = await _found(services, sandbox_id, asked.selector, caller)
                    place = _Place(services, sandbox_id, record.exec_id, caller)
                elif place is None:
                    msg = "the stream begins with the session that it is for"
                    raise ValueError(msg)
                else:
                    session = self._book.of((sandbox_id, place.exec_id))
                    await _write(place, session, asked.data, input_id="")
            return envelope(b"") + last()

        return await reply(request, write_all)

    async def send_signal(self, request: Request, sandbox_id: str) -> Response:
        """Signal a session, once for each id. One that has ended is no error."""
        services, caller = here(request)

        async def signal() -> bytes:
            asked = await whole(request, messages.read_signal)
            record = await _found(services, sandbox_id, asked.selector, caller)
            session = self._book.of((sandbox_id, record.exec_id))
            if session.is_news(asked.signal_id):
                await services.commands.signal(
                    sandbox_id, record.exec_id, asked.signal, owner=caller.owner
                )
                session.delivered(asked.signal_id)
            return b""

        return await unary(request, signal)

    async def update(self, request: Request, sandbox_id: str) -> Response:
        """Set the size of a session's terminal."""
        services, caller = here(request)

        async def resize() -> bytes:
            said = await whole(request, lambda data: data)
            size = messages.read_size(said)
            record = await _found(services, sandbox_id, messages.read_selector(said), caller)
            await services.commands.resize(
                sandbox_id, record.exec_id, rows=size.rows, cols=size.cols, owner=caller.owner
            )
            return b""

        return await unary(request, resize)

    async def list_running(self, request: Request, sandbox_id: str) -> Response:
        """The sessions that run, by number and by name."""
        services, caller = here(request)

        async def names() -> bytes:
            await whole(request, lambda data: data)
            records = await services.commands.list(sandbox_id, owner=caller.owner)
            running = [first_id(each.exec_id) for each in records if each.outcome is None]
            return messages.listed(
                {messages.pid_of(each): _name_of(each) for each in sorted(running)}
            )

        return await unary(request, names)


class _Place:
    """One command of one sandbox, for whoever writes to it."""

    __slots__ = ("caller", "exec_id", "sandbox_id", "services")

    def __init__(
        self, services: Services, sandbox_id: str, exec_id: str, caller: Principal
    ) -> None:
        self.services, self.sandbox_id = services, sandbox_id
        self.exec_id, self.caller = exec_id, caller

    async def write(self, data: bytes, *, offset: int | None) -> int:
        """Returns how many bytes the command has taken in all."""
        return await self.services.commands.write_stdin(
            self.sandbox_id,
            self.exec_id,
            data,
            owner=self.caller.owner,
            offset=offset,
            eof=False,
        )


async def _write(place: _Place, session: Session, data: bytes, *, input_id: str) -> None:
    """Cancelled or broken in between: how far it came is asked for the next time, and the same
    bytes sent again go on from there.
    """
    async with session.writing:
        taken, session.taken = session.taken, None
        if taken is None:
            taken = await place.write(b"", offset=None)
        began = session.begin_of(input_id, taken=taken)
        session.taken = max(taken, await place.write(data, offset=began))


def _command(asked: StartRequest, *, within_s: float | None) -> Command:
    if asked.session and not is_caller_id(_PREFIX + asked.session):
        msg = "session_uuid: give letters, digits and -, at most 100"
        raise ValueError(msg)
    return Command(
        exec_id=_PREFIX + asked.session if asked.session else new_id("exe"),
        argv=asked.argv,
        env=asked.env,
        cwd=asked.cwd or "",
        user=asked.user or "",
        stdin_open=asked.stdin or asked.tty is not None,
        tty=asked.tty,
        timeout_s=within_s,
        output_limit_bytes=_OUTPUT_BYTES,
    )


def _name_of(exec_id: str) -> str:
    return exec_id.removeprefix(_PREFIX) if exec_id.startswith(_PREFIX) else ""


async def _found(
    services: Services, sandbox_id: str, selector: Selector, caller: Principal
) -> ExecRecord:
    """The command that is meant, without output. Raises `not_found`."""
    if not selector.session:
        for each in await services.commands.list(sandbox_id, owner=caller.owner):
            if messages.pid_of(first_id(each.exec_id)) == selector.pid and not lacks_program(each):
                return each
        raise SandboxdError(ErrorCode.NOT_FOUND, "there is no session of that number")
    exec_id = _PREFIX + selector.session
    if not is_caller_id(exec_id):
        raise SandboxdError(ErrorCode.NOT_FOUND, "there is no session of that name")
    look = services.commands.look
    record = await look(sandbox_id, exec_id, owner=caller.owner, output=False)
    if not lacks_program(record):
        return record
    return await look(sandbox_id, other_id(exec_id), owner=caller.owner, output=False)


async def _watched(
    request: Request,
    sandbox_id: str,
    read: Callable[[bytes], T],
    open_session: Callable[[T], Awaitable[Watched]],
) -> Response:
    services, caller = here(request)
    return await stream(
        request,
        read,
        lambda asked: events_of(
            services, sandbox_id, lambda: open_session(asked), owner=caller.owner
        ),
    )


async def _messages(request: Request) -> AsyncIterator[bytes]:
    envelopes = Envelopes()
    size = 0
    async for piece in request.stream():
        size += len(piece)
        for message in envelopes.feed(piece):
            size = 0
            yield message
        if size > 2 * MAX_MESSAGE_BYTES:
            msg = "a message of the stream does not end"
            raise ValueError(msg)
    if not envelopes.whole:
        msg = "the stream ends within a message"
        raise ValueError(msg)
