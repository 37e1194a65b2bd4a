"""The rows of the kubernetes backend: claims of warm pods, how fast stock comes, a command."""

from __future__ import annotations

import time

import anyio

from sandboxd_client import AsyncSandbox
from scripts.bench import bare_engine
from scripts.bench.figures import Figure, Row, medians
from scripts.bench.house import Ground, House, open_house
from scripts.bench.measure import Pair, median, timed_ms, worst_but
from scripts.bench.rows import true_in
from scripts.bench.watched_pods import watched

_STOCK = 40  # what one node of the tests holds beside its own pods
_PER_S = 45.0
_FILL_S = 240.0
_SELDOM_S = 0.2
_SETTLE_S = 5.0  # for the node to write down what it has just started
_COMMANDS = 200
_BLOCK = 10
# For a node that is the daemon's own machine: as much of it as all pods can ask for beside its own.
# What a pod has asked for is its weight where processors are short.
_TABLE = """\
[backend.kubernetes]
guest = "address"
network_policy = "enforced"
cpu_request = 0.045
memory_request = 0.05
"""


def ground() -> Ground:
    """The cluster that KUBECONFIG names, which has both images."""
    return Ground(backend="kubernetes", image="sandboxd/python:latest", starting=16, table=_TABLE)


async def steady(house: House) -> list[Figure]:
    """Claims at a steady rate, for as long as the stock lasts."""
    claims_ms = await _claims(house, per_s=_PER_S)
    return _claimed(f"warm claim, {_PER_S:g} a second", claims_ms)


async def burst(house: House) -> list[Figure]:
    """All that the node holds, claimed at once."""
    claims_ms = await _claims(house, per_s=float("inf"))
    told = f"median {median(claims_ms):.1f} ms, worst {max(claims_ms):.1f} ms"
    name = f"{_STOCK} warm claims at once, p99"
    value = worst_but(claims_ms, 0.01)
    return [Figure(name=name, value=value, unit="ms", at_least=376, aim=50, against=told)]


async def _claims(house: House, *, per_s: float) -> list[float]:
    """How long each took over HTTP, in ms. The pool makes nothing meanwhile."""
    await house.wait_for_stock("warm", _STOCK, within_s=_FILL_S, every_s=_SELDOM_S)
    await house.adjust("warm", paused=True)
    await anyio.sleep(_SETTLE_S)
    claims_ms: list[float] = []

    async def claim() -> None:
        began = time.perf_counter()
        sandbox = await house.client.lease("warm")
        claims_ms.append((time.perf_counter() - began) * 1000)
        assert sandbox.granted is not None
        assert sandbox.granted.warm

    begin = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for number in range(_STOCK):
            await anyio.sleep_until(begin + number / per_s)
            tasks.start_soon(claim)
    return claims_ms


def _claimed(name: str, claims_ms: list[float]) -> list[Figure]:
    """Against the best published rival: 92 ms, and 376 ms."""
    told = f"p90 {worst_but(claims_ms, 0.1):.1f} ms"
    return [
        Figure(
            name=f"{name}, p50", value=median(claims_ms), unit="ms", at_least=10, aim=5,
            against=told,
        ),
        Figure(
            name=f"{name}, p99", value=worst_but(claims_ms, 0.01), unit="ms", at_least=50, aim=20,
        ),
    ]  # fmt: skip


async def refill(house: House) -> list[Figure]:
    """How fast an empty pool fills."""
    began = time.perf_counter()
    await house.adjust("cold", ready=_STOCK)
    await house.wait_for_stock("cold", _STOCK, within_s=_FILL_S, every_s=_SELDOM_S)
    rate = _STOCK / (time.perf_counter() - began)
    return [Figure(name="pool refill", value=rate, unit="/s", at_least=2, aim=6, lower=False)]


async def command(house: House) -> list[Figure]:
    """`true` through the SDK over HTTP; where there is an engine, in turn with the same there."""
    async with house.client.lease("warm") as sandbox:
        times_ms = [await timed_ms(lambda: true_in(sandbox)) for _ in range(_COMMANDS)]
        told = f"p99 {worst_but(times_ms, 0.01):.2f} ms"
        value = median(times_ms)
        found = [
            Figure(name="`true` in a pod", value=value, unit="ms", at_least=10, aim=5, against=told)
        ]
        return found + (await _against_docker(sandbox) if bare_engine.address() else [])


async def _against_docker(sandbox: AsyncSandbox) -> list[Figure]:
    """Both daemons are the same program on the same machine, one with pods, one with containers."""
    docker = Ground(
        backend="docker",
        image=bare_engine.image(),
        env={"DOCKER_HOST": bare_engine.address()},
    )
    pair = Pair([], [])
    async with open_house(docker, warm=1) as other, other.client.lease("warm") as container:
        for _ in range(_COMMANDS // _BLOCK):
            pair.ours.extend([await timed_ms(lambda: true_in(sandbox)) for _ in range(_BLOCK)])
            pair.other.extend([await timed_ms(lambda: true_in(container)) for _ in range(_BLOCK)])
    return [
        Figure(
            name="`true` in a pod, against a container", value=pair.ratio, unit="x", at_least=1.5,
            aim=1.1, against=medians(pair),
        )
    ]  # fmt: skip


ROWS = (
    Row(name="steady", measure=steady, warm=_STOCK),
    Row(name="burst", measure=burst, warm=_STOCK),
    Row(name="refill", measure=refill),
    Row(name="command", measure=command, warm=1),
    Row(name="watched", measure=watched),
)
