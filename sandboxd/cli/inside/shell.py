"""`shell`: a terminal in a sandbox, or, where ours is none, a plain pipe into one."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import anyio

from sandboxd.cli.client import LASTING_S, with_client
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.inside.escape import Escape
from sandboxd.cli.inside.execute import read_stdin, status_of
from sandboxd_client import (
    AsyncProcess,
    AsyncSandboxd,
    AsyncTerminal,
    CommandOptions,
    Conflict,
    Ended,
    ExecResult,
    Gap,
    SandboxdError,
    Stderr,
    Stdout,
)

_SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec /bin/sh"]
_GOODBYE_S = 2.0
# What a program that was left in the middle may have switched on: the other screen, mouse reports,
# bracketed paste, application keys, a hidden cursor, colours.
_MODES = ("?1049l", "?1000l", "?1002l", "?1003l", "?1006l", "?2004l", "?1l", "?25h", "0m")
_PLAIN_SCREEN = "\x1b>" + "".join(f"\x1b[{mode}" for mode in _MODES) + "\r\n"


def shell(args: Namespace) -> int:
    """Run it; the exit code is the command's `status`, 125 where that cannot be told."""
    if args.attach and args.cmd:
        raise CliError("give a command or --attach, not both", code=ExitCode.USAGE)
    on_terminal = sys.platform != "win32" and sys.stdin.isatty() and sys.stdout.isatty()

    async def verb(client: AsyncSandboxd) -> int:
        sandbox = client.sandbox(args.id)
        if args.attach:
            process = sandbox.process(args.attach)
        else:
            options: CommandOptions = {
                "env": dict(args.env) or None,
                "cwd": args.cwd,
                "user": args.user,
                "stdin_open": True,
            }
            if on_terminal:
                options["tty"] = _size()
                options["env"] = {"TERM": os.environ.get("TERM") or "xterm", **dict(args.env)}
            process = await sandbox.start(args.cmd or _SHELL, **options)
        async with process.attach(shared=bool(args.attach)) as terminal:
            if on_terminal:
                result = await _on_terminal(process, terminal)
            else:
                result = await _on_pipe(terminal)
        if result is not None:
            return status_of(result)
        say(f"left; it runs on: sandboxd shell {args.id} --attach {process.exec_id}")
        return ExitCode.OK

    return with_client(verb, patience_s=LASTING_S)


async def _on_terminal(process: AsyncProcess, terminal: AsyncTerminal) -> ExecResult | None:
    """Ours becomes the command's until it ends; None once its user has left it."""
    result: ExecResult | None = None
    # Heard from before the terminal is raw: who is told to go then still leaves it as it was.
    with anyio.open_signal_receiver(signal.SIGHUP, signal.SIGTERM) as farewells, _raw_mode():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow_size, process, name="size")
            tasks.start_soon(_hang_up, process, farewells, tasks.cancel_scope, name="hang-up")
            tasks.start_soon(_pass_keys, terminal, tasks.cancel_scope, name="keys")
            result = await _pass_output(terminal)
            tasks.cancel_scope.cancel()
        if result is None:
            os.write(sys.stdout.fileno(), _PLAIN_SCREEN.encode())
    return result


async def _on_pipe(terminal: AsyncTerminal) -> ExecResult:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_pipe, terminal, name="stdin")
        result = await _pass_output(terminal)
        tasks.cancel_scope.cancel()
    return result


async def _pass_output(terminal: AsyncTerminal) -> ExecResult:
    """Write what it writes, as it comes, until it ended."""
    async for event in terminal:
        match event:
            case Stdout(data=data):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            case Stderr(data=data):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
            case Gap(stream=stream, bytes=count):
                say(f"{count} bytes of {stream} were not kept and are missing here")
            case Ended(result=result):
                return result
            case _:
                pass
    raise CliError("the attachment ended without the command's end", code=ExitCode.OURS)


async def _pass_keys(terminal: AsyncTerminal, leave: anyio.CancelScope) -> None:
    """Every key to the command, but the escape; our input's end is as good as that."""
    escape = Escape()
    while typed := await read_stdin():
        keys, left = escape.feed(typed)
        if keys:
            await terminal.send(keys)
        if left:
            break
    leave.cancel()


async def _pass_pipe(terminal: AsyncTerminal) -> None:
    with suppress(Conflict):  # it ended, or has no input: its end tells the rest
        while data := await read_stdin():
            await terminal.send(data)
        await terminal.close_input()


async def _follow_size(process: AsyncProcess) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        await _tell_size(process)  # an attached command may have another one
        async for _ in changes:
            await _tell_size(process)


async def _tell_size(process: AsyncProcess) -> None:
    rows, cols = _size()
    with suppress(SandboxdError):  # ended, or without a terminal
        await process.resize(rows, cols)


async def _hang_up(
    process: AsyncProcess, farewells: AsyncIterator[signal.Signals], leave: anyio.CancelScope
) -> None:
    """Our terminal closed, or we are told to go: the command learns of it as it would here."""
    async for _ in farewells:
        with suppress(SandboxdError), anyio.move_on_after(_GOODBYE_S):
            await process.signal("HUP")
        leave.cancel()


def _size() -> tuple[int, int]:
    """Rows and columns of our terminal."""
    size = os.get_terminal_size(sys.stdin.fileno())
    return size.lines or 24, size.columns or 80


@contextmanager
def _raw_mode() -> Iterator[None]:
    """Our terminal passes every key on as it is; whatever happens, it is as before at the end."""
    if sys.platform == "win32":
        raise CliError("there are no terminals of this kind here")
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        # Without draining: a terminal that nobody reads any more would hold us here.
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
