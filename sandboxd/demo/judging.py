"""How one program is judged in a sandbox: as a command, or as cells of a kernel."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandboxd.demo.problems import Batch, Problem
from sandboxd_client import AsyncSandbox, CellOutcome

TIMEOUT_S = 60.0
_BY_ITSELF = {CellOutcome.OK, CellOutcome.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How it went. fault: what was not the program's doing, so that nothing can be said of it.

    said: its last words. seconds: from its start to its end.
    """

    passed: bool
    fault: str | None
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Way:
    """A way to judge. name: of what is timed."""

    name: str
    judge: Callable[[AsyncSandbox, Batch, Problem], Awaitable[Judgement]]


async def _by_command(sandbox: AsyncSandbox, batch: Batch, problem: Problem) -> Judgement:
    await sandbox.files.write("program.py", batch.program(problem).encode())
    start = time.perf_counter()
    result = await sandbox.exec(["python3", "program.py"], timeout_s=TIMEOUT_S)
    # The verdict is the Exec's own: what did not exit by itself is neither passed nor failed.
    exited = result.outcome == "exited"
    return Judgement(
        passed=result.ok,
        fault=f"{result.outcome}, fault {result.fault}" if result.mask or not exited else None,
        said=(result.stderr.strip().splitlines() or [""])[-1],
        seconds=time.perf_counter() - start,
    )


async def _by_cells(sandbox: AsyncSandbox, batch: Batch, problem: Problem) -> Judgement:
    """One cell after the other, until one is not well."""
    start = time.perf_counter()
    kernel = await sandbox.kernel()
    cell = None
    for code in batch.cells(problem):
        cell = await kernel.execute(code, timeout_s=TIMEOUT_S)
        if not cell.ok:
            break
    assert cell is not None
    judged = cell.outcome in _BY_ITSELF and not cell.mask
    return Judgement(
        passed=cell.ok,
        fault=None if judged else f"{cell.outcome}, fault {cell.fault}",
        said="" if cell.error is None else f"{cell.error.ename}: {cell.error.evalue}",
        seconds=time.perf_counter() - start,
    )


BY_COMMAND = Way("command", _by_command)
BY_CELLS = Way("cells", _by_cells)
