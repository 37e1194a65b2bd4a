"""Short words for what these checks do all the time. Every wait is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.guest import Attachment, Ended, Gap, Guest, OutputEvent, Piece
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.shell import ShellText

PATIENCE_S = 10.0


def seeded(size: int) -> bytes:
    """The same bytes of every value each time."""
    return Random(size).randbytes(size)  # noqa: S311


def command(*argv: str, **options: Any) -> Command:
    """A command under a fresh id."""
    return Command(exec_id=options.pop("exec_id", new_id("exec")), argv=argv, **options)


def script(text: str, **options: Any) -> Command:
    """Shell text as a command."""
    return command("/bin/sh", "-c", text, **options)


async def run(guest: Guest, order: Command) -> ExecRecord:
    """Run to the end."""
    with anyio.fail_after(PATIENCE_S):
        return await guest.run(order, wait=True)


async def sh(guest: Guest, text: str, **options: Any) -> ExecRecord:
    """Run shell text to the end."""
    return await run(guest, script(text, **options))


async def start(guest: Guest, order: Command) -> str:
    """Start without waiting; gives its id."""
    with anyio.fail_after(PATIENCE_S):
        return (await guest.run(order, wait=False)).exec_id


async def end_of(guest: Guest, exec_id: str) -> ExecRecord:
    """Wait for the end of a command that runs."""
    with anyio.fail_after(PATIENCE_S):
        record = await guest.look_exec(exec_id, wait_s=PATIENCE_S)
    assert record.outcome is not None
    return record


async def say(guest: Guest, shell_id: str, text: str, **options: Any) -> ExecRecord:
    """Run text in a shell."""
    order = ShellText(exec_id=new_id("exec"), text=text, **options)
    with anyio.fail_after(PATIENCE_S):
        return await guest.run_in_shell(shell_id, order, wait=True)


async def collect(attachment: Attachment) -> list[OutputEvent]:
    """All events to the end."""
    with anyio.fail_after(PATIENCE_S):
        return [event async for event in attachment]


async def replay(guest: Guest, exec_id: str, **options: Any) -> list[OutputEvent]:
    """All events of a command."""
    with anyio.fail_after(PATIENCE_S):
        async with guest.attach(exec_id, **options) as attachment:
            return await collect(attachment)


def joined(events: list[OutputEvent], stream: str = "stdout") -> bytes:
    """The bytes of one stream, whose offsets must follow on each other, gaps included."""
    data, offset = b"", None
    for event in events:
        if not isinstance(event, Piece | Gap) or event.stream != stream:
            continue
        assert offset in {None, event.offset}
        size = len(event.data) if isinstance(event, Piece) else event.size
        data += event.data if isinstance(event, Piece) else b""
        offset = event.offset + size
    return data


def the_end(events: list[OutputEvent]) -> ExecRecord:
    """The record that ends a stream: the last event, and the only one of its kind."""
    ends = [event for event in events if isinstance(event, Ended)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return ends[0].record


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds: for what nobody sends word of."""
    with anyio.fail_after(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


def need_any_program(backend: Backend) -> None:
    """Skip where only scripted programs run."""
    if backend.capabilities().programs != "any":
        pytest.skip(f"{backend.name} runs scripted programs only")
