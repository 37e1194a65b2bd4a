"""`top`: what the sandboxes use, again and again."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO

import anyio

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import ExitCode
from sandboxd.cli.table import in_words, print_json, print_table
from sandboxd.clock import SystemClock
from sandboxd_client import AsyncSandboxd, Readings, SandboxdError, SandboxInfo

_COLUMNS = ("id", "pool", "state", "age", "cpu", "cpu time", "memory", "pids", "execs", "run")
_AT_ONCE = 16
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class _Sample:
    """One look at one sandbox. at: monotonic. readings: None while or where there are none."""

    info: SandboxInfo
    readings: Readings | None
    at: float


def top(args: Namespace) -> int:
    """A table of the live sandboxes: on a terminal until Ctrl-C, else once."""

    async def verb(client: AsyncSandboxd) -> int:
        if args.output == "json":
            samples = await _look(client)
            print_json({"sandboxes": [_as_json(sample) for sample in samples]})
        elif not sys.stdout.isatty():
            print(_table(await _look(client), {}), end="")
        else:
            await _again_and_again(client, every_s=args.every)
        return ExitCode.OK

    if args.output == "json" or not sys.stdout.isatty():
        return with_client(verb)
    with suppress(KeyboardInterrupt):
        return with_client(verb)
    return ExitCode.OK


async def _again_and_again(client: AsyncSandboxd, *, every_s: float) -> None:
    before: dict[str, _Sample] = {}
    while True:
        samples = await _look(client)
        size = shutil.get_terminal_size()
        lines = _table(samples, before).splitlines()[: size.lines - 2]
        head = f"{len(samples)} sandboxes at {client.url}"
        screen = "\n".join(line[: size.columns] for line in [head, "", *lines][: size.lines])
        print(_HOME_AND_CLEAR + screen, end="", flush=True)
        before = {sample.info.id: sample for sample in samples}
        await anyio.sleep(every_s)


async def _look(client: AsyncSandboxd) -> list[_Sample]:
    """One look at all that live, newest first."""
    found = await client.sandboxes()
    samples: dict[str, _Sample] = {}
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def look(info: SandboxInfo) -> None:
        readings = None
        async with limit:
            if info.state == "leased":
                with suppress(SandboxdError):  # it ended meanwhile, or does not answer
                    readings = await client.sandbox(info.id).readings()
        samples[info.id] = _Sample(info, readings, anyio.current_time())

    async with anyio.create_task_group() as tasks:
        for info in found:
            tasks.start_soon(look, info)
    return [samples[info.id] for info in found]


def _table(samples: list[_Sample], before: dict[str, _Sample]) -> str:
    now = SystemClock().now()
    rows = [_row(sample, before.get(sample.info.id), now=now) for sample in samples]
    text = StringIO()
    print_table(_COLUMNS, rows, file=text)
    return text.getvalue()


def _row(sample: _Sample, before: _Sample | None, *, now: float) -> list[object]:
    info, readings = sample.info, sample.readings or Readings(execs_running=0)
    age = None if info.created_at is None else now - info.created_at
    execs = None if sample.readings is None else readings.execs_running
    return [
        info.id,
        info.template or info.image,
        info.state,
        in_words(age),
        _percent(sample, before),
        None if readings.cpu_s is None else f"{readings.cpu_s:.1f}s",
        _size(readings.memory_bytes),
        readings.pids,
        execs,
        info.run_id,
    ]


def _percent(sample: _Sample, before: _Sample | None) -> str | None:
    """Of one core, since the look before."""
    if before is None or before.readings is None or sample.readings is None:
        return None
    then, now = before.readings.cpu_s, sample.readings.cpu_s
    if then is None or now is None or sample.at <= before.at:
        return None
    return f"{100 * max(0.0, now - then) / (sample.at - before.at):.0f}%"


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    return f"{count / 1e9:.1f}G" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _as_json(sample: _Sample) -> dict[str, object]:
    readings = None if sample.readings is None else dict(sample.readings.raw)
    return {**sample.info.raw, "readings": readings}
