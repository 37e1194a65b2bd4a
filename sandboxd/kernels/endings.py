"""How cells are brought to their ends, for each reason that there is. Pure.

Times are Unix seconds: a cell may have begun, and even ended, under an earlier daemon.
"""

from __future__ import annotations

from sandboxd.kernels import verdicts
from sandboxd.kernels.cells import CellRun
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import CellOutcome, Outcome, Verdict


def end_by_reply(run: CellRun, *, at: float) -> None:
    """Reply and idle are in."""
    outcome = run.outcome_by_reply()
    _end(run, outcome, verdicts.of_cell(outcome), at=at)


def end_by_death(run: CellRun, record: ExecRecord, *, at: float) -> None:
    """Its kernel's process ended so, while it ran."""
    _end(run, CellOutcome.DIED, verdicts.of_death(record), at=at)


def was_forced(record: ExecRecord) -> bool:
    """Whether a process of a kernel ended because this daemon or an earlier one wanted it to, or
    did not survive that its cell was interrupted.
    """
    return record.outcome is Outcome.KILLED


def end_by_force(run: CellRun, *, at: float, restarted: bool) -> None:
    """Its kernel's process was ended, at its deadline or at a caller's wish. restarted: and is to
    be started anew.
    """
    run.kernel_restarted = restarted
    timed_out = run.timed_out or (_is_late(run, at) and not run.interrupted)
    outcome = CellOutcome.TIMEOUT if timed_out else CellOutcome.INTERRUPTED
    _end(run, outcome, verdicts.of_cell(outcome), at=at)


def end_past(run: CellRun, *, now: float) -> None:
    """It had ended before this daemon heard of it. Nobody is left who knows why it was interrupted,
    if it was: at its deadline for that, before it at somebody's wish.
    """
    at = run.settled_at or now
    if run.raised_interrupt:
        run.timed_out = _is_late(run, at)
        run.interrupted = not run.timed_out
    end_by_reply(run, at=at)


def end_replaced(run: CellRun, record: ExecRecord) -> None:
    """Its kernel was started anew since; record: of the process that it ran in."""
    at = record.started_at + record.duration_s
    if was_forced(record):
        end_by_force(run, at=at, restarted=True)
    else:
        end_by_death(run, record, at=at)


def _end(run: CellRun, outcome: CellOutcome, verdict: Verdict, *, at: float) -> None:
    run.end(outcome, duration_s=max(0.0, at - _start(run, at)), verdict=verdict)


def _is_late(run: CellRun, at: float) -> bool:
    timeout_s = run.order.timeout_s
    return timeout_s is not None and at - _start(run, at) >= timeout_s


def _start(run: CellRun, at: float) -> float:
    return at if run.given_at is None else run.given_at
