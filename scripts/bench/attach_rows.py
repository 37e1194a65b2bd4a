"""The rows about attached terminals: a keystroke's echo, and hundreds open at once."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio

from sandboxd_client import AsyncProcess, AsyncTerminal, Stdout
from scripts.bench.asker import answers_ms, asking
from scripts.bench.figures import Figure, Row
from scripts.bench.house import House
from scripts.bench.measure import median

_KEYSTROKES = 1000
_SANDBOXES, _COMMANDS, _READERS = 10, 10, 5  # of each: 500 readers
_AT_ONCE = 16
_TYPED_S = 5.0


async def attach_echo(house: House) -> list[Figure]:
    """A key typed into a terminal, until the SDK has its echo."""
    async with house.client.lease("warm") as sandbox:
        process = await sandbox.start(["cat"], tty=(24, 80))
        async with process.attach() as terminal:
            times = [await _keystroke_ms(terminal) for _ in range(_KEYSTROKES)]
    slow = sorted(times)[len(times) * 99 // 100]
    return [
        Figure(
            name="a keystroke's echo",
            value=median(times),
            unit="ms",
            at_least=5,
            aim=1,
            against=f"99 % within {slow:.1f} ms",
        )
    ]


async def attach_many(house: House) -> list[Figure]:
    """Hundreds of terminals opened and typed into, while another process asks for `/healthz`: how
    long the worst answer took bounds how long the daemon's loop was ever blocked.
    """
    await house.wait_for_stock("warm", _SANDBOXES)
    async with AsyncExitStack() as stack:
        processes: list[AsyncProcess] = []
        for _ in range(_SANDBOXES):
            sandbox = await stack.enter_async_context(house.client.lease("warm"))
            processes += [await sandbox.start(["cat"], tty=(24, 80)) for _ in range(_COMMANDS)]
        async with asking(house.daemon.url) as asker:
            start = time.perf_counter()
            terminals = await _attach_all(stack, processes * _READERS)
            each_ms = (time.perf_counter() - start) * 1000 / len(terminals)
            echoes = await _type_into(terminals[: len(processes)])
            worst_ms, usual_ms = await answers_ms(asker)
    many = f"{len(terminals)} attached"
    return [
        Figure(
            name=f"{many}: the longest that the loop was blocked",
            value=worst_ms,
            unit="ms",
            at_least=50,
            aim=20,
            against=f"an answer usually {usual_ms:.1f} ms",
        ),
        Figure(
            name=f"{many}: a keystroke's echo",
            value=median(echoes),
            unit="ms",
            at_least=5,
            aim=2,
            against=f"opened in {each_ms:.1f} ms each",
        ),
    ]


async def _attach_all(stack: AsyncExitStack, processes: list[AsyncProcess]) -> list[AsyncTerminal]:
    terminals: list[AsyncTerminal] = []
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def attach(process: AsyncProcess) -> None:
        async with limit:
            terminals.append(await process.attach(shared=True).__aenter__())

    async with anyio.create_task_group() as tasks:
        for process in processes:
            tasks.start_soon(attach, process)
    for terminal in terminals:
        stack.push_async_exit(terminal)
    return terminals


async def _type_into(terminals: list[AsyncTerminal]) -> list[float]:
    """Type into one after the other; the others have their echo of it too."""
    times: list[float] = []
    until = time.perf_counter() + _TYPED_S
    while time.perf_counter() < until:
        times += [await _keystroke_ms(terminal) for terminal in terminals]
    return times


async def _keystroke_ms(terminal: AsyncTerminal) -> float:
    start = time.perf_counter()
    await terminal.send(b"k")
    event = await anext(terminal)
    assert isinstance(event, Stdout)
    return (time.perf_counter() - start) * 1000


ROWS = (
    Row(name="attach", measure=attach_echo, warm=2),
    Row(name="attaches", measure=attach_many, warm=_SANDBOXES),
)
