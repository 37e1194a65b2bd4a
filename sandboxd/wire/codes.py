"""The closed sets that cross the wire: error codes, faults, outcomes, end reasons.

One table per set, so that a code without a status, or an outcome without a verdict, cannot exist.
Source: the contract's "Errors and verdicts".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Whose doing a failure was."""

    AGENT = "agent"  # the model's own actions
    TASK = "task"  # image or setup
    INFRA = "infra"  # ours
    CLIENT = "client"  # the caller
    UNKNOWN = "unknown"  # not known, so never scored


class ErrorCode(StrEnum):
    """Every code an error, an Exec, a Cell or an `end` may carry."""

    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    LEASE_ENDED = "lease_ended"
    SANDBOX_LOST = "sandbox_lost"
    TOO_LARGE = "too_large"
    QUOTA_EXCEEDED = "quota_exceeded"
    CAPACITY = "capacity"
    SHUTTING_DOWN = "shutting_down"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    IMAGE_UNAVAILABLE = "image_unavailable"
    START_FAILED = "start_failed"
    KERNEL_DIED = "kernel_died"
    KERNEL_BUSY = "kernel_busy"
    FILE_NOT_FOUND = "file_not_found"
    FILE_IS_DIRECTORY = "file_is_directory"
    FILE_NOT_DIRECTORY = "file_not_directory"
    FILE_EXISTS = "file_exists"
    FILE_FORBIDDEN = "file_forbidden"
    NAME_TOO_LONG = "name_too_long"
    DISK_FULL = "disk_full"
    NOT_SUPPORTED = "not_supported"
    TIMEOUT = "timeout"
    INTERNAL = "internal"
    # Only inside an Exec, a Cell or an `end`:
    OOM = "oom"
    SIGNALED = "signaled"
    KILLED = "killed"
    LOST = "lost"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What a code means on the wire unless the error that carries it knows better."""

    status: int | None  # HTTP status; None for codes that are never a response of their own
    fault: Fault
    retry_safe: bool  # the request certainly had no effect, and may be sent again without an id
    mask: bool  # leave this rollout out of the batch
    title: str


_C, _I, _A, _T, _U = Fault.CLIENT, Fault.INFRA, Fault.AGENT, Fault.TASK, Fault.UNKNOWN

CODES: dict[ErrorCode, CodeFacts] = {
    ErrorCode.BAD_REQUEST: CodeFacts(422, _C, False, True, "The request is not valid"),
    ErrorCode.UNAUTHENTICATED: CodeFacts(401, _C, True, True, "No valid key was given"),
    ErrorCode.FORBIDDEN: CodeFacts(403, _C, True, True, "This key may not do that"),
    ErrorCode.NOT_FOUND: CodeFacts(404, _C, False, True, "There is no such object"),
    ErrorCode.CONFLICT: CodeFacts(409, _C, False, True, "The object is in another state"),
    ErrorCode.LEASE_ENDED: CodeFacts(410, _C, False, True, "The lease has ended"),
    ErrorCode.SANDBOX_LOST: CodeFacts(410, _U, False, True, "The sandbox is gone"),
    ErrorCode.TOO_LARGE: CodeFacts(413, _C, False, True, "The body is over the limit"),
    ErrorCode.QUOTA_EXCEEDED: CodeFacts(429, _C, True, True, "This key's quota is used up"),
    ErrorCode.CAPACITY: CodeFacts(503, _I, True, True, "No sandbox is free"),
    ErrorCode.SHUTTING_DOWN: CodeFacts(503, _I, True, True, "The daemon is shutting down"),
    ErrorCode.BACKEND_UNAVAILABLE: CodeFacts(503, _I, True, True, "The backend does not answer"),
    ErrorCode.IMAGE_UNAVAILABLE: CodeFacts(424, _T, False, True, "The image cannot be had"),
    ErrorCode.START_FAILED: CodeFacts(502, _I, False, True, "It could not be started"),
    ErrorCode.KERNEL_DIED: CodeFacts(409, _U, False, True, "The kernel has died"),
    ErrorCode.KERNEL_BUSY: CodeFacts(409, _C, True, True, "The kernel's queue is full"),
    ErrorCode.FILE_NOT_FOUND: CodeFacts(404, _A, False, False, "There is no such file"),
    ErrorCode.FILE_IS_DIRECTORY: CodeFacts(409, _A, False, False, "The path is a directory"),
    ErrorCode.FILE_NOT_DIRECTORY: CodeFacts(409, _A, False, False, "The path is no directory"),
    ErrorCode.FILE_EXISTS: CodeFacts(409, _A, False, False, "The file exists"),
    ErrorCode.FILE_FORBIDDEN: CodeFacts(
        403, _A, False, False, "The sandbox's user may not do that"
    ),
    ErrorCode.NAME_TOO_LONG: CodeFacts(422, _C, False, True, "The path is too long"),
    ErrorCode.DISK_FULL: CodeFacts(507, _A, False, False, "The sandbox's disk is full"),
    ErrorCode.NOT_SUPPORTED: CodeFacts(501, _C, True, True, "This backend cannot do that"),
    ErrorCode.TIMEOUT: CodeFacts(504, _I, False, True, "A deadline of ours passed"),
    ErrorCode.INTERNAL: CodeFacts(500, _I, False, True, "Something of ours broke"),
    ErrorCode.OOM: CodeFacts(None, _A, False, False, "Out of memory"),
    ErrorCode.SIGNALED: CodeFacts(None, _A, False, False, "Ended by a signal"),
    ErrorCode.KILLED: CodeFacts(None, _C, False, False, "Killed by a caller"),
    ErrorCode.LOST: CodeFacts(None, _U, False, True, "Nobody saw its end"),
    ErrorCode.EVICTED: CodeFacts(None, _I, False, True, "Evicted by the host"),
}


class Outcome(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    KILLED = "killed"
    OOM = "oom"
    START_FAILED = "start_failed"
    LOST = "lost"


class CellOutcome(StrEnum):
    """How a cell of a kernel ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    DIED = "died"
    ABORTED = "aborted"


class StartFailure(StrEnum):
    """Why a command could not be started, for a reason inside the sandbox."""

    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    TOO_LONG = "too_long"  # arguments and environment over the kernel's limit
    PIDS = "pids"  # the process limit is used up
    NO_MEMORY = "no_memory"
    BAD_CWD = "bad_cwd"
    BAD_USER = "bad_user"


class EndReason(StrEnum):
    """Why a lease ended."""

    RELEASED = "released"
    EXPIRED = "expired"
    IDLE = "idle"
    RUN_LOST = "run_lost"
    DIED = "died"
    OOM = "oom"
    DISK = "disk"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    MAKE_FAILED = "make_failed"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trainer needs to know of an ending: its code, whose fault, and whether to mask."""

    code: ErrorCode | None
    fault: Fault | None
    mask: bool


_CLEAN = Verdict(None, None, mask=False)


def exec_verdict(
    outcome: Outcome,
    *,
    reason: StartFailure | None = None,
    host_short: bool = False,
    from_inside: bool = False,
) -> Verdict:
    """The verdict on a command.

    reason: why a `start_failed` could not be started; a working directory or user that the call
    itself named is the caller's fault. host_short: the host ran out of what was wanted (memory,
    processes), not the sandbox. from_inside: the lease's own working directory was there, and
    only something inside can have taken it away.
    """
    match outcome:
        case Outcome.EXITED:
            return _CLEAN
        case Outcome.TIMEOUT:
            return Verdict(ErrorCode.TIMEOUT, Fault.AGENT, mask=False)
        case Outcome.SIGNALED:
            return Verdict(ErrorCode.SIGNALED, Fault.AGENT, mask=False)
        case Outcome.KILLED:
            return Verdict(ErrorCode.KILLED, Fault.CLIENT, mask=False)
        case Outcome.OOM:
            return oom_verdict(host_short=host_short)
        case Outcome.START_FAILED:
            return _unstarted_verdict(reason, host_short=host_short, from_inside=from_inside)
        case Outcome.LOST:
            return Verdict(ErrorCode.LOST, Fault.UNKNOWN, mask=True)


def _unstarted_verdict(
    reason: StartFailure | None, *, host_short: bool, from_inside: bool
) -> Verdict:
    if reason in {StartFailure.BAD_CWD, StartFailure.BAD_USER} and not from_inside:
        return Verdict(ErrorCode.START_FAILED, Fault.CLIENT, mask=True)
    if host_short:
        return Verdict(ErrorCode.START_FAILED, Fault.INFRA, mask=True)
    return Verdict(ErrorCode.START_FAILED, Fault.AGENT, mask=False)


def oom_verdict(*, host_short: bool) -> Verdict:
    """Memory ran out: at the sandbox's own limit (the agent's doing) or the host's (ours)."""
    if host_short:
        return Verdict(ErrorCode.OOM, Fault.INFRA, mask=True)
    return Verdict(ErrorCode.OOM, Fault.AGENT, mask=False)


END_VERDICTS: dict[EndReason, Verdict] = {
    EndReason.RELEASED: _CLEAN,
    EndReason.EXPIRED: Verdict(ErrorCode.LEASE_ENDED, Fault.CLIENT, mask=True),
    EndReason.IDLE: Verdict(ErrorCode.LEASE_ENDED, Fault.CLIENT, mask=True),
    EndReason.RUN_LOST: Verdict(ErrorCode.LEASE_ENDED, Fault.CLIENT, mask=True),
    EndReason.DIED: Verdict(ErrorCode.SANDBOX_LOST, Fault.UNKNOWN, mask=True),  # without evidence
    EndReason.OOM: oom_verdict(host_short=False),
    EndReason.DISK: Verdict(ErrorCode.DISK_FULL, Fault.AGENT, mask=False),
    EndReason.EVICTED: Verdict(ErrorCode.EVICTED, Fault.INFRA, mask=True),
    EndReason.NODE_LOST: Verdict(ErrorCode.SANDBOX_LOST, Fault.INFRA, mask=True),
    EndReason.MAKE_FAILED: Verdict(ErrorCode.START_FAILED, Fault.INFRA, mask=True),
    EndReason.SHUTDOWN: Verdict(ErrorCode.SANDBOX_LOST, Fault.INFRA, mask=True),
}
