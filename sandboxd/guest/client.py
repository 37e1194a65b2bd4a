"""The guest of one box, as the rest of the daemon sees it: claim, commands, shells, files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from urllib.parse import quote

from sandboxd.guest import ports
from sandboxd.guest.attachment import Attachment, OutputStream
from sandboxd.guest.fields import loads, nonsense
from sandboxd.guest.frame_line import open_frame_line
from sandboxd.guest.guest_files import Body, GuestFiles
from sandboxd.guest.kernels import GuestKernels
from sandboxd.guest.line import Connect, Line
from sandboxd.guest.messages import (
    AFFINITY_SINCE,
    GuestReadings,
    Hello,
    OutputPiece,
    claim_body,
    command_body,
    read_exec,
    read_hello,
    read_readings,
    read_shell,
    setup_body,
    shell_body,
    shell_text_body,
    size_fields,
)
from sandboxd.guest.ports import GuestStream, Listener
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord, TerminalSize
from sandboxd.model.shell import Shell, ShellOrder, ShellText
from sandboxd.model.template import Setup
from sandboxd.wire.http1 import Headers

# Two streams of at most the 64 MiB that a guest keeps in all, in base64, and the rest.
_MAX_EXEC_BYTES = 96 << 20
_MAX_LIST_BYTES = 16 << 20


class Guest:
    """Calls to one guest, as many at a time as one likes.

    connect: opens a byte stream that is proven to be the guest's. Every call raises SandboxdError
    with what the guest refuses, and GuestLost when the line breaks. None has a deadline of its own:
    callers bound them. A cancelled call ends nothing inside the sandbox.
    """

    def __init__(self, connect: Connect, *, protocol: int | None = None) -> None:
        """protocol: the number that it speaks; None: it is asked where that matters."""
        self._line = Line(connect)
        self._protocol = protocol
        self.files = GuestFiles(self._line)
        self.kernels = GuestKernels(self._line)

    async def aclose(self) -> None:
        """Close what is idle and keep no connection from now on. Idempotent."""
        await self._line.aclose()

    async def drop_idle(self) -> None:
        """Close what is idle now."""
        await self._line.drop_idle()

    async def hello(self) -> Hello:
        """Who is there."""
        said = read_hello((await self._line.call("GET", "/v1/hello")).body)
        self._protocol = said.protocol
        return said

    async def begin_setup(self, setup: Setup) -> None:
        """Have commands run as `setup` says, until `end_setup`. `conflict` on a ready box."""
        await self._line.call("POST", "/v1/setup", setup_body(setup))

    async def end_setup(self) -> None:
        """The box is ready: the guest forgets every command so far. `conflict` while one runs."""
        await self._line.call("POST", "/v1/ready")

    async def claim(self, claim: Claim) -> None:
        """Give the box to a lease. The same lease again is success; another one is `conflict`."""
        if claim.affinity is not None and await self._spoken() < AFFINITY_SINCE:
            claim = replace(claim, affinity=None)
        await self._line.call("POST", "/v1/claim", claim_body(claim))

    async def _spoken(self) -> int:
        return (await self.hello()).protocol if self._protocol is None else self._protocol

    async def renew(self, *, life_s: float | None) -> None:
        """Set how many seconds the guest has from now; None for no end."""
        await self._line.call("POST", "/v1/renew", json.dumps({"life_s": life_s}).encode())

    async def kill_all(self) -> int:
        """End every command and shell; the box lives on. Returns how many there were."""
        return loads((await self._line.call("POST", "/v1/kill")).body).count("killed")

    async def end(self) -> None:
        """Have the box end with its first process, which never answers: raises GuestLost."""
        await self._line.call("POST", "/v1/end")

    async def readings(self) -> GuestReadings:
        """What the box uses now."""
        return read_readings((await self._line.call("GET", "/v1/readings")).body)

    async def run(self, command: Command, *, wait: bool) -> ExecRecord:
        """Create or attach. wait: until it ended, with output; else as soon as it started.

        `conflict` if the id belongs to another command.
        """
        body = command_body(command, wait=wait)
        answer = await self._line.call("POST", "/v1/execs", body, limit=_MAX_EXEC_BYTES)
        return read_exec(loads(answer.body))

    async def look_exec(
        self, exec_id: str, *, wait_s: float = 0, output: bool = True
    ) -> ExecRecord:
        """The record of a command, as soon as it ended or `wait_s` passed."""
        target = f"{_exec(exec_id)}?wait_s={wait_s:g}&output={int(output)}"
        answer = await self._line.call("GET", target, limit=_MAX_EXEC_BYTES)
        return read_exec(loads(answer.body))

    async def list_execs(self) -> list[ExecRecord]:
        """The records of all commands, newest first, without output."""
        answer = await self._line.call("GET", "/v1/execs", limit=_MAX_LIST_BYTES)
        return [read_exec(said) for said in loads(answer.body).each("execs")]

    async def read_output(
        self, exec_id: str, *, stream: OutputStream, offset: int, limit: int, wait_s: float = 0
    ) -> OutputPiece:
        """At most `limit` bytes from `offset`; at the end of a running one waits for more.

        Bytes that are not kept: `bad_request` with status 416 and `details.kept` [[from, to], …].
        """
        query = f"stream={stream}&offset={offset}&limit={limit}&wait_s={wait_s:g}"
        answer = await self._line.call("GET", f"{_exec(exec_id)}/output?{query}", limit=limit)
        next_offset = offset + len(answer.body)
        if answer.header(b"x-next-offset") != str(next_offset):
            raise nonsense("x-next-offset")
        ended = answer.header(b"x-ended")
        if ended not in {"0", "1"}:
            raise nonsense("x-ended")
        return OutputPiece(answer.body, next_offset, ended == "1")

    async def write_stdin(
        self, exec_id: str, data: Body, *, offset: int | None = None, eof: bool = False
    ) -> int:
        """Write to a command's input; returns how many bytes it has been given in all.

        offset: where `data` starts, so that what was already taken is skipped; a gap is
        `conflict`. `conflict` with status 410 once the process closed its end.
        """
        query = f"eof={int(eof)}" if offset is None else f"offset={offset}&eof={int(eof)}"
        target = f"{_exec(exec_id)}/stdin?{query}"
        if isinstance(data, bytes) and offset is not None:  # twice is as good as once
            return loads((await self._line.call("POST", target, data)).body).count("offset")
        headers: Headers = [] if isinstance(data, bytes) else [(b"transfer-encoding", b"chunked")]
        connection, response = await self._line.open("POST", target, headers, data)
        return loads(await self._line.finish(connection, response)).count("offset")

    async def signal(self, exec_id: str, name: str) -> bool:
        """Signal a command, like `TERM`; `KILL` takes its whole tree. False: it had ended."""
        body = json.dumps({"signal": name}).encode()
        target = f"{_exec(exec_id)}/signal"
        answer = await self._line.call("POST", target, body, repeatable=False)
        return loads(answer.body).flag("delivered")

    async def resize(self, exec_id: str, rows: int, cols: int) -> None:
        """Set the size of a command's terminal. `conflict` if it has none, or (410) ended."""
        body = json.dumps(size_fields(TerminalSize(rows, cols))).encode()
        await self._line.call("POST", f"{_exec(exec_id)}/resize", body)

    def attach(
        self, exec_id: str, *, after: int | None = None, offsets: tuple[int, int] | None = None
    ) -> AbstractAsyncContextManager[Attachment]:
        """Follow a command live: after the piece numbered `after`, or from byte offsets
        (stdout, stderr), or from its start. Leaving lets it run on.
        """
        query = ""
        if after is not None:
            query = f"?after={after}"
        elif offsets is not None:
            query = "?stdout={}&stderr={}".format(*offsets)
        return open_frame_line(self._line, f"{_exec(exec_id)}/attach{query}", Attachment)

    async def open_shell(self, order: ShellOrder) -> Shell:
        """Create or attach. `conflict` if it cannot be (no shell in the image)."""
        return read_shell(
            loads((await self._line.call("POST", "/v1/shells", shell_body(order))).body)
        )

    async def look_shell(self, shell_id: str) -> Shell:
        """A shell as it is now."""
        return read_shell(loads((await self._line.call("GET", _shell(shell_id))).body))

    async def list_shells(self) -> list[Shell]:
        """All shells, ended ones too."""
        answer = await self._line.call("GET", "/v1/shells", limit=_MAX_LIST_BYTES)
        return [read_shell(said) for said in loads(answer.body).each("shells")]

    async def close_shell(self, shell_id: str) -> None:
        """End a shell and what runs in it."""
        await self._line.call("DELETE", _shell(shell_id), repeatable=False)

    async def run_in_shell(self, shell_id: str, text: ShellText, *, wait: bool) -> ExecRecord:
        """Run text in a shell, create-or-attach like `run`.

        `conflict` while it is busy, and with `details.shell_ended` once it has ended.
        """
        body = shell_text_body(text, wait=wait)
        target = f"{_shell(shell_id)}/run"
        answer = await self._line.call("POST", target, body, limit=_MAX_EXEC_BYTES)
        return read_exec(loads(answer.body))

    async def open_port(self, port: int) -> GuestStream:
        """Connect to who listens on 127.0.0.1:`port` inside, or else on ::1.

        `conflict` with `details.reason` `refused` (nobody listens) or `timeout` (5 s).
        """
        return await ports.open_port(self._line, port)

    async def set_listeners(self, listeners: Iterable[Listener]) -> list[Listener]:
        """Have the guest listen on these ports of 127.0.0.1 inside, and on no others.

        What it listened on before and is named again stays as it is. Returns them in order, each
        with its true port or its `error`.
        """
        return await ports.set_listeners(self._line, listeners)

    async def accept(self) -> tuple[str, GuestStream]:
        """Wait for the next connection to a listener: its name, and the connection.

        Each connection goes to one of those who wait; one that comes while nobody does is kept for
        30 s. A cancelled wait takes none.
        """
        return await ports.accept(self._line)


def _exec(exec_id: str) -> str:
    return "/v1/execs/" + _segment(exec_id)


def _shell(shell_id: str) -> str:
    return "/v1/shells/" + _segment(shell_id)


def _segment(name: str) -> str:
    # `.` and `..` are ids too, and would be cleaned out of a path if they stood there as they are.
    return name.replace(".", "%2E") if name in {".", ".."} else quote(name, safe="")
