"""The rows about kernels: a cell, the first of a warm lease, many at once, and much output."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio

from sandboxd_client import AsyncKernel, Cell
from scripts.bench import processes
from scripts.bench.asker import answers_ms, asking
from scripts.bench.figures import Figure, Row, medians
from scripts.bench.house import House
from scripts.bench.jupyter_peer import jupyter_peer
from scripts.bench.measure import Pair, timed_ms

_CELLS = 300
_LEASES = 30
_STARTS = 8
_SANDBOXES, _KERNELS, _ROUNDS = 8, 8, 5  # 64 kernels, each with five cells
_AT_ONCE = 4  # kernels starting
_LINES = 200_000
_LINE = "the quick brown fox jumps over the lazy dog, " * 2 + "and again"
_PRINTED = (len(_LINE) + 1) * _LINES


async def cell(house: House) -> list[Figure]:
    """`1 + 1` through the SDK over HTTP, against Jupyter's own client with its own kernel."""
    pair = Pair([], [])
    async with house.client.lease("kernels") as sandbox, jupyter_peer() as peer:
        kernel = await sandbox.kernel()
        for number in range(_CELLS + 10):
            ours, other = await timed_ms(lambda: _one_and_one(kernel)), await peer.cell_ms()
            if number >= 10:
                pair.ours.append(ours)
                pair.other.append(other)
    return [
        Figure(
            name="`1 + 1` in a kernel through the SDK",
            value=pair.ratio,
            unit="× jupyter_client",
            at_least=2,
            aim=1.3,
            against=medians(pair),
        )
    ]


async def warm(house: House) -> list[Figure]:
    """A lease of a sandbox that has a kernel, and its first cell, against a kernel's start."""
    pair = Pair([], [])
    async with jupyter_peer() as peer:
        for number in range(_LEASES):
            await house.wait_for_stock("kernels", 2)
            start = time.perf_counter()
            sandbox = await house.client.lease("kernels")
            await _one_and_one(await sandbox.kernel())
            elapsed_ms = (time.perf_counter() - start) * 1000
            if sandbox.granted is not None and sandbox.granted.warm:
                pair.ours.append(elapsed_ms)
            await sandbox.release()
            if number < _STARTS:
                pair.other.append(await peer.start_ms())
    return [
        Figure(
            name="warm lease and its first cell",
            value=1 / pair.ratio,
            unit="× faster than a kernel's start",
            at_least=15,
            aim=40,
            lower=False,
            against=medians(pair),
        )
    ]


async def busy(house: House) -> list[Figure]:
    """Many kernels that all compute, while another process asks for `/healthz`."""
    wrong = 0
    async with AsyncExitStack() as leases:
        kernels = await _many_kernels(leases, house)
        async with asking(house.daemon.url) as asker:

            async def work(kernel: AsyncKernel, seed: int) -> None:
                nonlocal wrong
                for number in range(_ROUNDS):
                    wrong += not _is_right(
                        await kernel.execute(_sum_of(seed + number)), seed + number
                    )

            start = time.perf_counter()
            async with anyio.create_task_group() as workers:
                for seed, kernel in enumerate(kernels):
                    workers.start_soon(work, kernel, 1000 * seed)
            rate = len(kernels) * _ROUNDS / (time.perf_counter() - start)
            worst_ms, usual_ms = await answers_ms(asker)
    many = f"{len(kernels)} busy kernels"
    return [
        Figure(name=f"{many}: cells that were not exact", value=wrong, unit="", at_least=0, aim=0),
        Figure(
            name=f"{many}: the longest that the loop was blocked",
            value=worst_ms,
            unit="ms",
            at_least=50,
            aim=20,
            against=f"an answer usually {usual_ms:.1f} ms; {rate:.0f} cells/s",
        ),
    ]


async def output(house: House) -> list[Figure]:
    """A cell that prints 20 MB, line by line: all of it, or head, tail and a word that it is so."""
    async with house.client.lease("kernels") as sandbox:
        kernel = await sandbox.kernel()
        await _one_and_one(kernel)
        processes.reset_peak(house.daemon.pid)
        before = processes.rss_mb(house.daemon.pid)
        start = time.perf_counter()
        told = await kernel.execute(f"for _ in range({_LINES}): print({_LINE!r})\nprint('LAST')")
        seconds = time.perf_counter() - start
        growth = processes.peak_rss_mb(house.daemon.pid) - before
    whole = told.stdout == f"{_LINE}\n" * _LINES + "LAST\n"
    said_so = told.truncated and told.stdout.startswith(_LINE) and told.stdout.endswith("\nLAST\n")
    name = f"{_PRINTED / 1e6:.0f} MB printed by a cell"
    return [
        Figure(
            name=f"{name}: neither exact nor marked",
            value=float(not (told.ok and (whole or said_so))),
            unit="",
            at_least=0,
            aim=0,
        ),
        Figure(
            name=f"{name}: daemon grows by",
            value=growth,
            unit="MB",
            at_least=32,
            aim=16,
            against=f"{seconds:.1f} s, {_PRINTED / seconds / 1e6:.0f} MB/s",
        ),
    ]


async def _many_kernels(leases: AsyncExitStack, house: House) -> list[AsyncKernel]:
    kernels: list[AsyncKernel] = []
    limit = anyio.CapacityLimiter(_AT_ONCE)
    sandboxes = [
        await leases.enter_async_context(house.client.lease("kernels")) for _ in range(_SANDBOXES)
    ]

    async def start(number: int) -> None:
        async with limit:
            kernels.append(await sandboxes[number % _SANDBOXES].kernel())

    async with anyio.create_task_group() as tasks:
        for number in range(_SANDBOXES * _KERNELS):
            tasks.start_soon(start, number)
    return kernels


def _sum_of(seed: int) -> str:
    return f"print({seed}, flush=True)\nsum(i * i for i in range({seed}, {seed} + 100_000))"


def _is_right(told: Cell, seed: int) -> bool:
    total = sum(i * i for i in range(seed, seed + 100_000))
    return told.ok and not told.truncated and told.text == f"{seed}\n{total}"


async def _one_and_one(kernel: AsyncKernel) -> None:
    assert (await kernel.execute("1 + 1")).text == "2"


ROWS = (
    Row(name="kernel-cell", measure=cell, kernels=1),
    Row(name="kernel-warm", measure=warm, kernels=2),
    Row(name="kernels-busy", measure=busy),
    Row(name="kernel-output", measure=output, kernels=1),
)
