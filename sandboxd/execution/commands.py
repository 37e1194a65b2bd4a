"""Commands in a leased sandbox. The guest keeps their records; nothing of them is kept here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import (
    START_S,
    TRIES,
    ask,
    ask_once,
    ask_to_the_end,
    broken,
    shown,
    told,
)
from sandboxd.guest.attachment import Attachment, Ended, OutputEvent, OutputStream
from sandboxd.guest.guest_files import Body
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import GuestReadings, OutputPiece
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.command import Command, ExecRecord
from sandboxd.telemetry import spans
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

KEEPALIVE_S = 15.0
_ASK_S = 15.0  # for what the guest answers at once


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Nothing happened for a while; the line is whole."""


class Commands:
    """Runs, watches and signals commands. `owner`: whose lease it must be.

    Every call raises `not_found`, `conflict` (not leased yet), and `lease_ended` or `sandbox_lost`
    with the lease's end where the sandbox is gone: such a call never gets a record. No call waits
    for a guest that is frozen: TimeoutError within `SILENCE_S + START_S` seconds.
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
                    return await shown(self._desk, tenancy, record)
            record = await ask_to_the_end(
                self._desk, tenancy, lambda g, *, wait: g.run(command, wait=wait), wait_s=wait_s
            )
            self._measure(tenancy, record)
            return record

    def _measure(self, tenancy: Tenancy, record: ExecRecord) -> None:
        """Whoever started it has waited for its end."""
        if record.outcome is None:
            return
        self._metrics.exec_seconds.observe(record.duration_s)
        spans.tell(
            "exec",
            began_at=record.started_at,
            ended_at=record.started_at + record.duration_s,
            parent=spans.parent(),
            sandbox_id=tenancy.lease.id,
            pool=tenancy.lease.terms.template,
            exec_id=record.exec_id,
            outcome=record.outcome,
            exit_code=record.exit_code,
        )

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
        self,
        lease_id: str,
        exec_id: str,
        *,
        owner: str | None,
        after: int | None = None,
        begun: bool = False,
    ) -> AsyncGenerator[OutputEvent | KeepAlive, None]:
        """Events of a command from the one after `after` on, live, until `Ended`.

        begun: the caller has started it just now, so that its end is measured.

        Raises what `look` raises, and TimeoutError for a guest that is silent to other questions
        too; a line that breaks while the sandbox lives is mended on the way.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            tries = TRIES
            while True:
                try:
                    async with self._desk.guest_of(tenancy) as guest, AsyncExitStack() as line:
                        with anyio.fail_after(START_S):
                            opening = guest.attach(exec_id, after=after)
                            attachment = await line.enter_async_context(opening)
                        while (event := await _next(attachment)) is not None:
                            if isinstance(event, KeepAlive):
                                await self._lives(tenancy)
                            else:
                                after, tries = event.seq, TRIES
                            if begun and isinstance(event, Ended):
                                self._measure(tenancy, event.record)
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
                raise await told(self._desk, tenancy, lost) from lost

    async def start(self, lease_id: str, command: Command, *, owner: str | None) -> ExecRecord:
        """Create or attach without waiting for the end."""
        return await self.run(lease_id, command, owner=owner, wait_s=0)

    async def _lives(self, tenancy: Tenancy) -> None:
        """Raises TimeoutError for a guest that says nothing."""
        with anyio.fail_after(START_S):
            await ask(self._desk, tenancy, lambda g: g.hello())

    async def _look(
        self, tenancy: Tenancy, exec_id: str, *, wait_s: float, output: bool
    ) -> ExecRecord:
        with anyio.fail_after(wait_s + _ASK_S):
            return await ask(
                self._desk, tenancy, lambda g: g.look_exec(exec_id, wait_s=wait_s, output=output)
            )


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
