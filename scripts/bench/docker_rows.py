"""The rows of the docker backend: ours against the engine's own, in turn, in the same run."""

from __future__ import annotations

import time

import anyio
from anyio import to_thread

from sandboxd_client import AsyncSandbox
from scripts.bench.bare_engine import BareEngine, bare_engine
from scripts.bench.figures import Figure, Row, medians
from scripts.bench.house import House
from scripts.bench.measure import Pair, in_turn, median, timed_here_ms, worst_but
from scripts.bench.rows import true_in

_AT_ONCE = (1, 2, 4, 8)
_STARTS = 24
_SELDOM_S = 0.2
_REFILL_ROUNDS = 3
_GONE_S = 60.0
_RELEASES = 100


async def command(house: House) -> list[Figure]:
    """`true` through the SDK over HTTP, against the docker SDK's exec in the same container."""
    async with house.client.lease("warm") as sandbox:
        with bare_engine() as engine:
            container = engine.container_of(await _box_id(sandbox))
            await house.wait_for_stock("warm", 2)

            def exec_run() -> None:
                assert container.exec_run(["true"]).exit_code == 0

            pair = await in_turn(lambda: true_in(sandbox), exec_run, rounds=15, block=10)
    return [_faster("`true` through the SDK", pair, "exec_run", at_least=10, aim=20)]


async def warm_lease(house: House) -> list[Figure]:
    """A lease from stock, against the docker SDK's create and start with no network."""
    pair = Pair([], [])
    with bare_engine() as engine:
        while len(pair.ours) < 40:
            await house.wait_for_stock("warm", 4)
            began = time.perf_counter()
            sandbox = await house.client.lease("warm")
            elapsed_ms = (time.perf_counter() - began) * 1000
            await sandbox.release(wait_s=_GONE_S)
            if sandbox.granted is None or not sandbox.granted.warm:
                continue
            await house.wait_for_stock("warm", 4)
            pair.ours.append(elapsed_ms)
            pair.other.append(timed_here_ms(engine.start_one))
            engine.clear()
    return [_faster("warm lease", pair, "create + start", at_least=20, aim=40)]


async def refill(house: House) -> list[Figure]:
    """How fast an empty pool fills, against what the engine starts at its best concurrency."""
    ours: list[float] = []
    bare: dict[int, list[float]] = {at_once: [] for at_once in _AT_ONCE}
    with bare_engine() as engine:
        for _ in range(_REFILL_ROUNDS):
            for at_once, rates in bare.items():
                rates.append(await to_thread.run_sync(_bare_rate, engine, at_once))
            ours.append(await _refill_rate(house))
    best = max(bare, key=lambda at_once: median(bare[at_once]))
    told = ", ".join(f"{at_once}: {median(rates):.1f}" for at_once, rates in bare.items())
    return [
        Figure(
            name="pool refill, of what the bare engine starts",
            value=median(ours) / median(bare[best]),
            unit="×",
            at_least=0.8,
            aim=0.8,
            lower=False,
            against=f"{median(ours):.1f} /s against {median(bare[best]):.1f} /s (at once {told})",
        )
    ]


def _bare_rate(engine: BareEngine, at_once: int) -> float:
    try:
        return engine.starts_per_s(at_once=at_once, total=_STARTS)
    finally:
        engine.clear()


async def _refill_rate(house: House) -> float:
    """The same number of boxes, from none; all are gone again afterwards."""
    began = time.perf_counter()
    await house.adjust("cold", ready=_STARTS)
    await house.wait_for_stock("cold", _STARTS, every_s=_SELDOM_S)
    rate = _STARTS / (time.perf_counter() - began)
    await house.adjust("cold", ready=0)
    await house.wait_for_stock("cold", 0)
    return rate


async def release_refilling(house: House) -> list[Figure]:
    """Release to gone, 2 a second, while the pool makes as many."""
    await house.wait_for_stock("warm", 8)
    gone_s = await _release_at(house, per_s=2.0)
    return [_gone("release to gone, 2 a second, pool refilling", gone_s)]


async def release_paused(house: House) -> list[Figure]:
    """Release to gone, 5 a second, while nothing is made."""
    await house.wait_for_stock("warm", _RELEASES, within_s=240)
    await house.adjust("warm", paused=True)
    gone_s = await _release_at(house, per_s=5.0)
    return [_gone("release to gone, 5 a second, pool paused", gone_s)]


async def _release_at(house: House, *, per_s: float) -> list[float]:
    """Lease, run a command and release at a steady pace, whatever the answers take; seconds."""
    gone_s: list[float] = []

    async def roll_out() -> None:
        sandbox = await house.client.lease("warm")
        await true_in(sandbox)
        began = time.perf_counter()
        await sandbox.release(wait_s=_GONE_S)
        gone_s.append(time.perf_counter() - began)

    begin = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for number in range(_RELEASES):
            await anyio.sleep_until(begin + number / per_s)
            tasks.start_soon(roll_out)
    return gone_s


def _gone(name: str, gone_s: list[float]) -> Figure:
    return Figure(
        name=name,
        value=worst_but(gone_s, 0.01),
        unit="s p99",
        at_least=2,
        aim=1,
        against=f"median {median(gone_s):.3f} s, worst {max(gone_s):.3f} s",
    )


def _faster(name: str, pair: Pair, other: str, *, at_least: float, aim: float) -> Figure:
    return Figure(
        name=name,
        value=1 / pair.ratio,
        unit=f"× as fast as {other}",
        at_least=at_least,
        aim=aim,
        lower=False,
        against=medians(pair),
    )


async def _box_id(sandbox: AsyncSandbox) -> str:
    async for line in sandbox.logs():
        if line["event"] == "leased":
            return str(line["box_id"])
    raise AssertionError("its diary does not say which box it is")


ROWS = (
    Row(name="command", measure=command, warm=2),
    Row(name="warm", measure=warm_lease, warm=4),
    Row(name="refill", measure=refill),
    Row(name="release", measure=release_refilling, warm=8),
    Row(name="release-paused", measure=release_paused, warm=_RELEASES),
)
