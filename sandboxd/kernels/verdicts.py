"""Whose fault the end of a cell or of a kernel is, and what is said of it. Pure."""

from __future__ import annotations

from sandboxd.errors import SandboxdError
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import (
    CellOutcome,
    ErrorCode,
    Fault,
    Outcome,
    StartFailure,
    Verdict,
    exec_verdict,
)

CLEAN = Verdict(None, None, mask=False)
_BY_CALLER = Verdict(ErrorCode.KILLED, Fault.CLIENT, mask=False)
_TIMED_OUT = Verdict(ErrorCode.TIMEOUT, Fault.AGENT, mask=False)


def of_cell(outcome: CellOutcome) -> Verdict:
    """Of a cell whose kernel outlived it, or was ended to end it."""
    match outcome:
        case CellOutcome.TIMEOUT:
            return _TIMED_OUT
        case CellOutcome.INTERRUPTED:
            return _BY_CALLER
        case _:
            return CLEAN


def of_death(record: ExecRecord) -> Verdict:
    """Of a cell that its kernel's end took with it: by the end's cause."""
    if record.from_inside or record.outcome in {Outcome.EXITED, Outcome.SIGNALED, None}:
        return Verdict(ErrorCode.KERNEL_DIED, Fault.AGENT, mask=False)
    cause = exec_verdict(record.outcome, reason=record.reason, host_short=record.host_short)
    return Verdict(ErrorCode.KERNEL_DIED, cause.fault, mask=cause.mask)


def death(record: ExecRecord) -> SandboxdError:
    """What calls on a kernel are answered whose process ended so."""
    verdict = of_death(record)
    how = f"signal {record.signal}" if record.signal else f"exit code {record.exit_code}"
    return SandboxdError(
        ErrorCode.KERNEL_DIED,
        f"the kernel died ({record.outcome}, {how}): restart it, its variables are gone",
        fault=verdict.fault,
        mask=verdict.mask,
        details={"outcome": record.outcome, "exit_code": record.exit_code},
    )


_OF_THE_IMAGE = {StartFailure.NOT_FOUND, StartFailure.NOT_EXECUTABLE, StartFailure.TOO_LONG}


def not_started(spec: str, record: ExecRecord) -> SandboxdError:
    """What calls on a kernel are answered whose process ended before it took cells: the image's
    doing, where nothing says that a limit of the sandbox was met, or that somebody inside was in
    the way.
    """
    words = record.last_words()
    fault, mask = Fault.TASK, True
    unlaunched = record.outcome is Outcome.START_FAILED and record.reason not in _OF_THE_IMAGE
    if record.from_inside or unlaunched or record.outcome in {Outcome.OOM, Outcome.LOST}:
        cause = of_death(record)
        fault, mask = cause.fault or Fault.UNKNOWN, cause.mask
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"kernel {spec!r} is not available in this image: it ended before it answered"
        + (f": {words}" if words else f" ({record.detail or record.outcome})"),
        fault=fault,
        mask=mask,
        details={"spec": spec, "exit_code": record.exit_code},
    )


def spoiled(error: SandboxdError) -> SandboxdError:
    """The same for a kernelspec that has run in this sandbox before: what kept it from running now
    came from inside since.
    """
    if error.code is not ErrorCode.START_FAILED or error.fault is not Fault.TASK:
        return error
    details = {**error.details, "from_inside": True}
    return SandboxdError(error.code, error.detail, fault=Fault.AGENT, mask=False, details=details)


def silent(spec: str) -> SandboxdError:
    """The same for one whose process lives and says nothing."""
    detail = f"kernel {spec!r} was started, and did not answer in time"
    return SandboxdError(ErrorCode.START_FAILED, detail, fault=Fault.TASK, mask=True)


def takes_nothing(why: str) -> SandboxdError:
    """What a message is answered that a kernel does not take any more, before its end is known."""
    return SandboxdError(ErrorCode.KERNEL_DIED, why, fault=Fault.AGENT, mask=False)


def mute(within_s: float) -> SandboxdError:
    """What a request is answered that the kernel has, and says nothing to."""
    return SandboxdError(
        ErrorCode.TIMEOUT,
        f"the kernel did not answer within {within_s:g} s",
        fault=Fault.AGENT,
        mask=False,
        details={"from_inside": True},
    )


def shut_down() -> SandboxdError:
    """What calls on a kernel are answered that a caller ended."""
    return SandboxdError(ErrorCode.NOT_FOUND, "the kernel was shut down")


def not_ready() -> SandboxdError:
    """What calls are answered while this daemon speaks with the kernel no longer, or not yet."""
    return SandboxdError(ErrorCode.SHUTTING_DOWN, "nobody speaks with the kernel at the moment")


def ran_before(cell_id: str) -> SandboxdError:
    """What a cell is answered that the guest gave to the kernel long ago."""
    return SandboxdError(
        ErrorCode.CONFLICT, f"cell {cell_id!r} ran before, and was forgotten since"
    )


def first_of(errors: BaseExceptionGroup[SandboxdError]) -> SandboxdError:
    """One of several that came together."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SandboxdError)
    return error
