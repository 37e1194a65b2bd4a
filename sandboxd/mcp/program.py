"""A server's process inside a leased sandbox, as lines both ways; not what they say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import SILENCE_S, START_S, TRIES, ask, broken
from sandboxd.guest.attachment import Attachment, Ended, Gap, OutputEvent, Piece
from sandboxd.guest.line import GuestLost
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.lines import LineReader
from sandboxd.mcp.messages import LARGEST_BYTES, Message, write_message
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.mcp_server import McpServer, exec_id_of
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_KEPT_BYTES = 1 << 20  # of each stream, by the guest: its first answers, and its last words
_LINE_S = 60.0  # for one message to be taken

Heard = Callable[[Message], None]


def command_of(server: McpServer, generation: int, *, expected: Claim | None = None) -> Command:
    """What its guest is asked to run. expected: in a box that nobody has claimed yet."""
    return Command(
        exec_id=exec_id_of(server.name, generation),
        argv=server.command,
        env=dict(server.env),
        cwd=server.cwd,
        stdin_open=True,
        standing=True,
        output_limit_bytes=_KEPT_BYTES,
        expected=expected,
    )


class Program:
    """One process. Every call raises as those of `Commands` do."""

    def __init__(self, desk: Desk, tenancy: Tenancy, server: McpServer, *, generation: int) -> None:
        self.generation = generation
        self.tenancy = tenancy
        self._desk = desk
        self._command = command_of(server, generation)
        self._writing = anyio.Lock()
        self.caught_up = anyio.Event()  # all was heard that it said before we followed
        self._untaken = b""
        self._written: int | None = None  # bytes; None until its guest was asked

    @property
    def exec_id(self) -> str:
        """The id of its command."""
        return self._command.exec_id

    async def start(self) -> ExecRecord:
        """Start it; its record, without output."""
        with anyio.fail_after(START_S):
            record = await ask(
                self._desk, self.tenancy, lambda guest: guest.run(self._command, wait=False)
            )
        self._written = 0
        return record

    async def look(self) -> ExecRecord:
        """Its record, with what it wrote last."""
        with anyio.fail_after(START_S):
            return await ask(self._desk, self.tenancy, lambda g: g.look_exec(self.exec_id))

    async def end(self) -> None:
        """End it, with all that it started."""
        with anyio.fail_after(START_S):
            await ask(self._desk, self.tenancy, lambda g: g.signal(self.exec_id, "KILL"))

    async def write(self, message: Message) -> None:
        """Give it one message. What was taken once is not given again, and of what it did not take
        the rest comes before the next message: so no line is ever cut.

        Raises `conflict` with status 410 once it has closed its input, and TimeoutError where it
        reads nothing. Cancelled: it gets the message all the same.
        """
        async with self._writing:
            if len(self._untaken) > LARGEST_BYTES:
                raise TimeoutError
            self._untaken += write_message(message)
            with anyio.CancelScope(shield=True), anyio.fail_after(_LINE_S):
                if self._written is None:
                    self._written = await self._give(b"", None)
                self._written = await self._give(self._untaken, self._written)
                self._untaken = b""

    async def _give(self, data: bytes, offset: int | None) -> int:
        return await ask(
            self._desk,
            self.tenancy,
            lambda guest: guest.write_stdin(self.exec_id, data, offset=offset),
        )

    async def follow(
        self, heard: Heard, *, past_bytes: int, lost: Callable[[], None]
    ) -> ExecRecord:
        """Hear all that it says, from its beginning on, until it has ended; its record then.

        past_bytes: that it had said already. lost: told of a message that is missing. Raises what
        became of the sandbox.
        """
        if not past_bytes:
            self.caught_up.set()
        hearing = _Hearing(LineReader(), heard, lost, past_bytes)
        tries = TRIES
        while True:
            before = hearing.after
            try:
                return await self._hear(hearing)
            except GuestLost as error:
                tries = TRIES if hearing.after != before else tries - 1
                if tries == 0:
                    raise broken(self.tenancy, error) from error
            except TimeoutError:
                raise SandboxdError(
                    ErrorCode.TIMEOUT, "the guest did not answer", sandbox_id=self.tenancy.lease.id
                ) from None

    async def _hear(self, hearing: _Hearing) -> ExecRecord:
        """One line's worth. Raises GuestLost, and TimeoutError for a guest that is silent."""
        async with AsyncExitStack() as line:
            guest = await line.enter_async_context(self._desk.guest_of(self.tenancy))
            with anyio.fail_after(START_S):
                opening = guest.attach(self.exec_id, after=hearing.after)
                attachment = await line.enter_async_context(opening)
            while True:
                event = await self._next(attachment)
                hearing.after = event.seq
                match event:
                    case Piece(stream="stdout"):
                        self._feed(hearing, event.data)
                        self._note(event.offset + len(event.data), hearing)
                    case Gap(stream="stdout"):
                        hearing.reader.skip()
                        self._note(event.offset + event.size, hearing)
                    case Ended(record=record):
                        self.caught_up.set()
                        return record
                    case _:
                        pass  # what it writes to its standard error its record has

    async def _next(self, attachment: Attachment) -> OutputEvent:
        """The next event; a guest that is silent for long is asked whether it is there."""
        while True:
            with anyio.move_on_after(SILENCE_S):
                return await anext(attachment)
            with anyio.fail_after(START_S):
                await ask(self._desk, self.tenancy, lambda guest: guest.hello())

    def _note(self, heard_bytes: int, hearing: _Hearing) -> None:
        if heard_bytes >= hearing.past_bytes:
            self.caught_up.set()

    def _feed(self, hearing: _Hearing, data: bytes) -> None:
        reader = hearing.reader
        junk, missing = reader.junk_bytes, reader.lost
        for message in reader.feed(data):
            hearing.heard(message)
        if reader.junk_bytes > junk:
            log.info(
                "mcp.junk",
                sandbox_id=self.tenancy.lease.id,
                command=self.exec_id,
                bytes=reader.junk_bytes - junk,
            )
        if reader.lost > missing:
            hearing.lost()


@dataclass(slots=True)
class _Hearing:
    """How far it was heard. after: the last event; past_bytes: said before we followed."""

    reader: LineReader
    heard: Heard
    lost: Callable[[], None]
    past_bytes: int
    after: int | None = None
