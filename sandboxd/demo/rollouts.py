"""The rollouts: lease, program, verdict, release, so many at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from sandboxd.demo.judging import BY_COMMAND, Way
from sandboxd.demo.problems import Batch, Problem
from sandboxd_client import AsyncSandboxd, SandboxdError

LEASE_TIMEOUT_S = 300.0
ROLLOUT_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How one rollout went. Times in seconds, None where it did not come so far. program_s: of the
    program, as the command or the cells that it was.

    right: the verdict is the one that the batch demands. fault: what was not the program's doing.
    """

    task_id: str
    right: bool
    passed: bool = False
    fault: str | None = None
    said: str = ""
    lease_s: float | None = None
    program_s: float | None = None


@dataclass(slots=True)
class BatchResult:
    """All rollouts of a batch, and how long it took from the first lease to the last release."""

    batch: Batch
    way: Way = BY_COMMAND
    rollouts: list[Rollout] = field(default_factory=list)
    seconds: float = 0.0


async def run_batch(
    client: AsyncSandboxd,
    batch: Batch,
    problems: Sequence[Problem],
    *,
    concurrency: int,
    done: Callable[[int], None],
    way: Way = BY_COMMAND,
) -> BatchResult:
    """Run every problem of a batch; a rollout that failed is a result.

    done: called with the count so far. way: how programs are judged.
    """
    result = BatchResult(batch, way)
    waiting = iter(problems)

    async def worker() -> None:
        for problem in waiting:
            result.rollouts.append(await _rollout(client, way, batch, problem))
            done(len(result.rollouts))

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(min(concurrency, len(problems))):
            tasks.start_soon(worker, name=f"rollouts {number}")
    result.seconds = time.perf_counter() - start
    return result


async def _rollout(client: AsyncSandboxd, way: Way, batch: Batch, problem: Problem) -> Rollout:
    try:
        with anyio.fail_after(ROLLOUT_TIMEOUT_S):
            return await _lease_and_judge(client, way, batch, problem)
    except SandboxdError as error:
        fault = str(error)
    except TimeoutError:
        fault = f"no answer within {ROLLOUT_TIMEOUT_S:g} s"
    return Rollout(task_id=problem.task_id, right=False, fault=fault)


async def _lease_and_judge(
    client: AsyncSandboxd, way: Way, batch: Batch, problem: Problem
) -> Rollout:
    start = time.perf_counter()
    async with client.lease(
        "python",
        timeout_s=LEASE_TIMEOUT_S,
        wait_timeout_s=ROLLOUT_TIMEOUT_S,
        rollout_id=_id(problem),
    ) as sandbox:
        lease_s = time.perf_counter() - start
        judgement = await way.judge(sandbox, batch, problem)
    return Rollout(
        task_id=problem.task_id,
        passed=judgement.passed,
        right=judgement.fault is None and judgement.passed is batch.must_pass,
        fault=judgement.fault,
        said=judgement.said,
        lease_s=lease_s,
        program_s=judgement.seconds,
    )


def _id(problem: Problem) -> str:
    return problem.task_id.replace("/", "-")
