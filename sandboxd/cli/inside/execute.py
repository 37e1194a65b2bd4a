"""`exec`: a command in a sandbox as if it ran here: input, output, signals and status passed on."""

from __future__ import annotations

import os
import signal
import stat
import sys
from argparse import Namespace
from contextlib import suppress
from typing import BinaryIO

import anyio

from sandboxd.cli.client import LASTING_S, sentence, with_client
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd_client import (
    AsyncProcess,
    AsyncSandboxd,
    CommandOptions,
    Ended,
    ExecResult,
    Gap,
    SandboxdError,
    Stderr,
    Stdout,
)

_STDIN_BYTES = 65536


def execute(args: Namespace) -> int:
    """Run it; the exit code is the command's `status`, 125 where that cannot be told."""
    if not args.cmd:
        raise CliError("give the command after `--`", code=ExitCode.USAGE)
    has_stdin = not args.no_stdin and sys.stdin is not None
    options: CommandOptions = {
        "env": dict(args.env) or None,
        "cwd": args.cwd,
        "user": args.user,
        "timeout_s": args.timeout,
        "stdin_open": has_stdin,
    }

    async def verb(client: AsyncSandboxd) -> int:
        process = await client.sandbox(args.id).start(args.cmd, **options)
        async with anyio.create_task_group() as tasks:
            if sys.platform != "win32":
                tasks.start_soon(_pass_signals, process, name="signals")
            if has_stdin:
                tasks.start_soon(_pass_stdin, process, name="stdin")
            result = await _pass_output(process)
            tasks.cancel_scope.cancel()
        return status_of(result)

    return with_client(verb, patience_s=LASTING_S)


async def _pass_output(process: AsyncProcess) -> ExecResult:
    """Write what it writes, as it comes, until it ended."""
    async for event in process.events():
        match event:
            case Stdout(data=data):
                await _write(process, sys.stdout.buffer, data)
            case Stderr(data=data):
                await _write(process, sys.stderr.buffer, data)
            case Gap(stream=stream, bytes=count):
                say(f"{count} bytes of {stream} were not kept and are missing here")
            case Ended(result=result):
                return result
            case _:
                pass
    raise CliError("the stream of events ended without the command's end", code=ExitCode.OURS)


async def _write(process: AsyncProcess, out: BinaryIO, data: bytes) -> None:
    try:
        out.write(data)
        out.flush()
    except BrokenPipeError:
        # As a command that ran here would learn it.
        with suppress(SandboxdError):
            await process.signal("PIPE")
        raise


async def _pass_signals(process: AsyncProcess) -> None:
    """Pass on what is meant for the command; a second Ctrl-C kills it."""
    interrupts = 0
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            interrupts += number == signal.SIGINT
            name = "KILL" if interrupts > 1 else signal.Signals(number).name.removeprefix("SIG")
            try:
                await process.signal(name)
            except SandboxdError as error:
                say(f"could not pass on {name}: {sentence(error)}")


async def _pass_stdin(process: AsyncProcess) -> None:
    """Our standard input to the command's, end of file included."""
    # A command that ended or closed its input refuses more; the stream of events tells the rest.
    with suppress(SandboxdError):
        while data := await read_stdin():
            await process.write(data)
        await process.close_stdin()


async def read_stdin() -> bytes:
    """Some of our standard input, empty at its end."""
    descriptor = sys.stdin.fileno()
    if sys.platform == "win32":
        return await anyio.to_thread.run_sync(
            os.read, descriptor, _STDIN_BYTES, abandon_on_cancel=True
        )
    # A worker thread that reads a terminal cannot be ended, so wait first; files never block.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        with suppress(PermissionError):  # what epoll refuses, such as /dev/null, does not block
            await anyio.wait_readable(descriptor)
    return os.read(descriptor, _STDIN_BYTES)


def status_of(result: ExecResult) -> int:
    """The shell's number, with a line where a number alone would mislead."""
    if result.outcome != "exited":
        detail = result.error.detail if result.error else ""
        say(f"the command did not exit: {result.outcome}" + (f", {detail}" if detail else ""))
    if result.status is None or result.fault == "infra":
        return ExitCode.OURS
    return result.status
