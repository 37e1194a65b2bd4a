"""Timing: pairs in turn, medians, rates. Knows nothing of sandboxes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two acts measured in turn; times in milliseconds."""

    ours: list[float]
    other: list[float]

    @property
    def ratio(self) -> float:
        """The median of ours over the median of the other."""
        return statistics.median(self.ours) / statistics.median(self.other)


async def in_turn(
    ours: Act, other: Callable[[], None], *, rounds: int, warm_up: int = 3, block: int = 1
) -> Pair:
    """Run both `rounds` times each, in turn, so that noise hits both alike.

    block: so many of each in a row, where the other leaves work behind that would be ours to wait
    for: what it did not end, and the caches that it filled.
    """
    pair = Pair([], [])
    for number in range(warm_up + rounds):
        ours_ms = [await timed_ms(ours) for _ in range(block)]
        other_ms = [timed_here_ms(other) for _ in range(block)]
        if number >= warm_up:
            pair.ours.extend(ours_ms)
            pair.other.extend(other_ms)
    return pair


async def timed_ms(act: Act) -> float:
    """How long one act takes, in milliseconds."""
    start = time.perf_counter()
    await act()
    return (time.perf_counter() - start) * 1000


def timed_here_ms(act: Callable[[], None]) -> float:
    """How long something takes that needs no loop, in milliseconds."""
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1000


async def rate_per_s(act: Callable[[int], Awaitable[None]], *, at_once: int, total: int) -> float:
    """How many acts a second finish, so many at a time; an act is told which worker runs it."""
    waiting = iter(range(total))

    async def worker(number: int) -> None:
        for _ in waiting:
            await act(number)

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(at_once):
            tasks.start_soon(worker, number)
    return total / (time.perf_counter() - start)


def median(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def worst_but(values: list[float], part: float) -> float:
    """The largest value once this part of them, the largest, is left out: 0.01 gives the p99."""
    return sorted(values)[max(0, len(values) - 1 - int(part * len(values)))]
