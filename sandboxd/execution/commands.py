"""Commands in a leased sandbox. The guest keeps their records; nothing of them is kept here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import inf

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import TRIES, ask, ask_once, broken
from sandboxd.guest.attachment import Attachment, Ended, OutputEvent, OutputStream
from sandboxd.guest.guest_files import Body
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import GuestReadings, OutputPiece
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import Command, ExecRecord
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

KEEPALIVE_S = 15.0
START_S = 30.0  # for a command to start, in a sandbox that is short of everything
_ASK_S = 15.0  # for what the guest answers at once
_LATE_S = 60.0  # a guest that is silent so long after a command's deadline says no more


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Nothing happened for a while; the line is whole."""


class Commands:
    """Runs, watches and signals commands. `owner`: whose lease it must be.

    Every call raises `not_found`, `conflict` (not leased yet), and `lease_ended` or `sandbox_lost`
    with the lease's end where the sandbox is gone: such a call never gets a record.
    """

    def __init__(self, desk: Desk, metrics: Metrics) -> None:
        self._desk = desk
        self._metrics = metrics

    async def run(
        self,
        lease_id: str,
        command: Command,
        *,
        owner: str | None,
        wait_s: float | None,
        again: bool = False,
    ) -> ExecRecord:
        """Create or attach, and wait for the end: `wait_s` seconds at most (0: until it started),
        None as long as it takes. A caller that goes away ends nothing.

        again: this caller has started it already, and goes on waiting.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            tenancy.execs += not again
            if wait_s == 0:
                with anyio.fail_after(START_S):
                    record = await ask(self._desk, tenancy, lambda g: g.run(command, wait=False))
                if record.shows_output:
                    return record
                return await self._look(tenancy, command.exec_id, wait_s=0, output=True)
            return await self._run_to_end(tenancy, command, wait_s=wait_s)

    async def _run_to_end(
        self, tenancy: Tenancy, command: Command, *, wait_s: float | None
    ) -> ExecRecord:
        """A guest that is silent for longer than the command may take is asked how it stands: it
        may have been started with a longer deadline than this call names.
        """
        over_at = inf if wait_s is None else anyio.current_time() + wait_s
        patience = patience_s(command.timeout_s)
        while True:
            left = over_at - anyio.current_time()
            with anyio.move_on_after(left if patience is None else min(left, patience)):
                record = await ask(self._desk, tenancy, lambda g: g.run(command, wait=True))
                self._metrics.exec_seconds.observe(record.duration_s)
                return record
            with anyio.fail_after(START_S):
                record = await self._look(tenancy, command.exec_id, wait_s=0, output=True)
            if record.outcome is not None or anyio.current_time() >= over_at:
                return record

    async def look(
        self,
        lease_id: str,
        exec_id: str,
        *,
        owner: str | None,
        wait_s: float = 0,
        output: bool = True,
    ) -> ExecRecord:
        """The record, as soon as it ended or `wait_s` passed. Waiting is use, looking is not."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        if wait_s == 0:
            return await self._look(tenancy, exec_id, wait_s=0, output=output)
        with tenancy.call():
            return await self._look(tenancy, exec_id, wait_s=wait_s, output=output)

    async def list(self, lease_id: str, *, owner: str | None) -> list[ExecRecord]:
        """All records, newest first, without output."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        with anyio.fail_after(_ASK_S):
            return await ask(self._desk, tenancy, lambda g: g.list_execs())

    async def readings(self, lease_id: str, *, owner: str | None) -> tuple[GuestReadings, int]:
        """What the sandbox uses now, and how many commands run in it. No use, for the clock."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        with anyio.fail_after(_ASK_S):
            readings = await ask(self._desk, tenancy, lambda g: g.readings())
            hello = await ask(self._desk, tenancy, lambda g: g.hello())
        return readings, hello.execs_running

    async def read_output(
        self,
        lease_id: str,
        exec_id: str,
        *,
        owner: str | None,
        stream: OutputStream,
        offset: int,
        limit: int,
        wait_s: float,
    ) -> OutputPiece:
        """Bytes of one stream; see `Guest.read_output`."""
        with self._desk.using(lease_id, owner=owner) as tenancy:
            with anyio.fail_after(wait_s + _ASK_S):
                return await ask(
                    self._desk,
                    tenancy,
                    lambda g: g.read_output(
                        exec_id, stream=stream, offset=offset, limit=limit, wait_s=wait_s
                    ),
                )

    async def write_stdin(
        self,
        lease_id: str,
        exec_id: str,
        data: Body,
        *,
        owner: str | None,
        offset: int | None,
        eof: bool,
    ) -> int:
        """Write input; returns how many bytes were taken in all. See `Guest.write_stdin`."""
        with self._desk.using(lease_id, owner=owner) as tenancy:
            return await ask_once(
                self._desk,
                tenancy,
                lambda g: g.write_stdin(exec_id, data, offset=offset, eof=eof),
            )

    async def signal(self, lease_id: str, exec_id: str, name: str, *, owner: str | None) -> bool:
        """Send a signal; `KILL` takes the whole tree. False: it had ended already."""
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            return await ask_once(self._desk, tenancy, lambda g: g.signal(exec_id, name))

    async def resize(
        self, lease_id: str, exec_id: str, *, rows: int, cols: int, owner: str | None
    ) -> None:
        """Set the size of a command's terminal. `conflict` for one without a terminal, with status
        410 for one that has ended.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            await ask(self._desk, tenancy, lambda g: g.resize(exec_id, rows, cols))

    async def follow(
        self, lease_id: str, exec_id: str, *, owner: str | None, after: int | None = None
    ) -> AsyncGenerator[OutputEvent | KeepAlive, None]:
        """Events of a command from the one after `after` on, live, until `Ended`.

        Raises what `look` raises; a line that breaks while the sandbox lives is mended on the way.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            tries = TRIES
            while True:
                try:
                    async with (
                        self._desk.guest_of(tenancy) as guest,
                        guest.attach(exec_id, after=after) as attachment,
                    ):
                        while (event := await _next(attachment)) is not None:
                            if not isinstance(event, KeepAlive):
                                after, tries = event.seq, TRIES
                            yield event
                            if isinstance(event, Ended):
                                return
                except GuestLost as lost:
                    tries -= 1
                    if tries == 0:
                        raise broken(tenancy, lost) from lost

    @asynccontextmanager
    async def attach(
        self, lease_id: str, exec_id: str, *, owner: str | None, offsets: tuple[int, int]
    ) -> AsyncIterator[Attachment]:
        """A two-way line to a command, its output from byte offsets (stdout, stderr) on. Use, for
        the idle clock, while it is open.

        Raises what `look` raises. A GuestLost in the block becomes `lease_ended` or
        `sandbox_lost` where the sandbox is over, else `backend_unavailable`: attach again.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            try:
                async with AsyncExitStack() as line:
                    with anyio.fail_after(_ASK_S):
                        guest = await line.enter_async_context(self._desk.guest_of(tenancy))
                        opening = guest.attach(exec_id, offsets=offsets)
                        attachment = await line.enter_async_context(opening)
                    yield attachment
            except GuestLost as lost:
                raise broken(tenancy, lost) from lost

    async def start(self, lease_id: str, command: Command, *, owner: str | None) -> ExecRecord:
        """Create or attach without waiting for the end."""
        return await self.run(lease_id, command, owner=owner, wait_s=0)

    async def _look(
        self, tenancy: Tenancy, exec_id: str, *, wait_s: float, output: bool
    ) -> ExecRecord:
        with anyio.fail_after(wait_s + _ASK_S):
            return await ask(
                self._desk, tenancy, lambda g: g.look_exec(exec_id, wait_s=wait_s, output=output)
            )


def patience_s(timeout_s: float | None) -> float | None:
    """How long the end of a command with that deadline is waited for; None: until the lease ends.

    The guest keeps deadlines itself. Ours is for a guest that is frozen, or no longer itself.
    """
    return None if timeout_s is None else START_S + timeout_s + _LATE_S


async def _next(attachment: Attachment) -> OutputEvent | KeepAlive | None:
    """The next event, or a sign of life after a silence; None at the end."""
    with anyio.move_on_after(KEEPALIVE_S):
        try:
            return await anext(attachment)
        except StopAsyncIteration:
            return None
    return KeepAlive()


MAX_SHELL_TEXT_BYTES = 131_071  # the kernel's limit on one argument, less its end


def shell_argv(text: str) -> tuple[str, ...]:
    """What runs a command given as text. Raises `too_large` for more than one argument holds."""
    if len(text.encode()) > MAX_SHELL_TEXT_BYTES:
        raise SandboxdError(
            ErrorCode.TOO_LARGE,
            f"shell text is limited to {MAX_SHELL_TEXT_BYTES} bytes: write a file and run that",
            details={"limit_bytes": MAX_SHELL_TEXT_BYTES},
        )
    return ("/bin/sh", "-c", text)
