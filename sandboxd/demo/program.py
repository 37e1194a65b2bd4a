"""The demo from beginning to end: choose, start, run both batches, look for leftovers, report."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Sequence

import anyio

from sandboxd.cli.faults import CliError, ExitCode
from sandboxd.demo.choose import Choice, choose_backend
from sandboxd.demo.embedded import DaemonFailed, embedded_daemon
from sandboxd.demo.judging import BY_CELLS, BY_COMMAND, Way
from sandboxd.demo.leftovers import boxes_of, find_leftovers
from sandboxd.demo.problems import BATCHES, Problem, load_problems
from sandboxd.demo.progress import Progress
from sandboxd.demo.report import how_to_go_on, is_right, summary
from sandboxd.demo.rollouts import BatchResult, run_batch
from sandboxd_client import AsyncSandboxd

TOTAL_TIMEOUT_S = 1800.0
_MOST_AT_ONCE = 16

_CONFIG = """\
[templates.python]
image = "{image}"
resources = {{cpu = 1.0, memory_mb = 512, pids = 64, disk_mb = 512}}
pool = {{ready = {ready}, max = {max}, starting = {starting}, queue = 1000}}
kernels = {kernels}
[log]
level = "warning"
"""


def run_demo(args: Namespace) -> int:
    """Run it. 0 only if every verdict is right and nothing is left over."""
    # Whoever ends us gets the same clean end as Ctrl-C: by the loop's own handler, which cancels.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    problems = load_problems()[: args.limit]
    choice = choose_backend(args.backend)
    concurrency = args.concurrency or default_concurrency()
    print(f"backend: {choice.backend} ({choice.because})")
    way = BY_CELLS if args.kernel else BY_COMMAND
    kind = ", cells of a kernel" if args.kernel else ""
    print(
        f"HumanEval: {len(problems)} problems, {concurrency} rollouts at a time{kind}", flush=True
    )
    try:
        return anyio.run(_run, choice, way, problems, concurrency)
    except DaemonFailed as error:
        raise CliError(f"the demo's daemon failed: {error}\n`sandboxd doctor` says more") from error


def default_concurrency() -> int:
    """Twice the cores, as rollouts wait for their programs half of the time; at most 16."""
    return min(2 * (os.cpu_count() or 1), _MOST_AT_ONCE)


async def _run(choice: Choice, way: Way, problems: Sequence[Problem], concurrency: int) -> int:
    results: list[BatchResult] = []
    left: list[str] = []
    with anyio.move_on_after(TOTAL_TIMEOUT_S) as scope:
        async with (
            embedded_daemon(_config(choice, way, concurrency), backend=choice.backend) as daemon,
            AsyncSandboxd(url=daemon.url) as client,
        ):
            results += await _run_batches(client, way, problems, concurrency)
            left += await find_leftovers(client, daemon)
        left += await boxes_of(daemon)  # an ephemeral daemon takes its stock along
    if scope.cancelled_caught:
        raise CliError(f"the demo did not end within {TOTAL_TIMEOUT_S:g} s")
    print()
    for line in summary(results, left=left):
        print(line)
    right = is_right(results, left=left)
    wrong = "NOT RIGHT: see above; `sandboxd doctor` may know why"
    print(f"\n{how_to_go_on(choice.backend) if right else wrong}")
    return ExitCode.OK if right else ExitCode.FAILED


async def _run_batches(
    client: AsyncSandboxd, way: Way, problems: Sequence[Problem], concurrency: int
) -> list[BatchResult]:
    results: list[BatchResult] = []
    for batch in BATCHES:
        progress = Progress(batch.name, total=len(problems))
        progress.show(0)
        done = progress.show
        results.append(
            await run_batch(client, batch, problems, concurrency=concurrency, done=done, way=way)
        )
    return results


def _config(choice: Choice, way: Way, concurrency: int) -> str:
    return _CONFIG.format(
        kernels='["python3"]' if way is BY_CELLS else "[]",
        image=choice.image,
        ready=concurrency,
        max=3 * concurrency + 8,
        starting=max(2, os.cpu_count() or 1),
    )
