"""The rollouts: lease, file, command, verdict, release, so many at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from sandboxd.demo.problems import Batch, Problem
from sandboxd_client import AsyncSandboxd, SandboxdError

COMMAND_TIMEOUT_S = 60.0
LEASE_TIMEOUT_S = 300.0
ROLLOUT_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How one rollout went. Times in seconds, None where it did not come so far.

    right: the verdict is the one that the batch demands. fault: what was not the program's doing.
    """

    task_id: str
    right: bool
    passed: bool = False
    fault: str | None = None
    said: str = ""
    lease_s: float | None = None
    command_s: float | None = None


@dataclass(slots=True)
class BatchResult:
    """All rollouts of a batch, and how long it took from the first lease to the last release."""

    batch: Batch
    rollouts: list[Rollout] = field(default_factory=list)
    seconds: float = 0.0


async def run_batch(
    client: AsyncSandboxd,
    batch: Batch,
    problems: Sequence[Problem],
    *,
    concurrency: int,
    done: Callable[[int], None],
) -> BatchResult:
    """Run every problem of a batch; a rollout that failed is a result.

    done: called with the count so far.
    """
    result = BatchResult(batch)
    waiting = iter(problems)

    async def worker() -> None:
        for problem in waiting:
            result.rollouts.append(await _rollout(client, batch, problem))
            done(len(result.rollouts))

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(min(concurrency, len(problems))):
            tasks.start_soon(worker, name=f"rollouts {number}")
    result.seconds = time.perf_counter() - start
    return result


async def _rollout(client: AsyncSandboxd, batch: Batch, problem: Problem) -> Rollout:
    try:
        with anyio.fail_after(ROLLOUT_TIMEOUT_S):
            return await _lease_and_judge(client, batch, problem)
    except SandboxdError as error:
        fault = str(error)
    except TimeoutError:
        fault = f"no answer within {ROLLOUT_TIMEOUT_S:g} s"
    return Rollout(task_id=problem.task_id, right=False, fault=fault)


async def _lease_and_judge(client: AsyncSandboxd, batch: Batch, problem: Problem) -> Rollout:
    start = time.perf_counter()
    async with client.lease(
        "python",
        timeout_s=LEASE_TIMEOUT_S,
        wait_timeout_s=ROLLOUT_TIMEOUT_S,
        rollout_id=_id(problem),
    ) as sandbox:
        leased = time.perf_counter()
        await sandbox.files.write("program.py", batch.program(problem).encode())
        written = time.perf_counter()
        result = await sandbox.exec(["python3", "program.py"], timeout_s=COMMAND_TIMEOUT_S)
        ended = time.perf_counter()
    # The verdict is the Exec's own: what did not exit by itself is neither passed nor failed.
    exited = result.outcome == "exited"
    fault = f"{result.outcome}, fault {result.fault}" if result.mask or not exited else None
    return Rollout(
        task_id=problem.task_id,
        passed=result.ok,
        right=exited and result.ok is batch.must_pass,
        fault=fault,
        said=(result.stderr.strip().splitlines() or [""])[-1],
        lease_s=leased - start,
        command_s=ended - written,
    )


def _id(problem: Problem) -> str:
    return problem.task_id.replace("/", "-")
