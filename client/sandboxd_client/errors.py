"""What can go wrong, as classes: one per code of the contract, and what a command's failure raises.

    SandboxdError            a call failed: .code .fault .retry_safe .mask say what that means
    ├── BadRequest … Internal    one class per code, as the daemon answered
    └── ApiUnreachable           the daemon could not be asked, or its answer was lost
    CommandFailed            ExecResult.check(): the call went well, the command did not
    CellFailed               Cell.check(): the call went well, the cell did not

`mask` is the one question a trainer asks of either kind: leave this rollout out of the batch?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sandboxd.wire.codes import CODES, ErrorCode, Fault

if TYPE_CHECKING:
    from sandboxd_client.cells import Cell
    from sandboxd_client.results import ExecResult


class SandboxdError(Exception):
    """A call failed. Never raised for a command that merely failed.

    code: from the contract's closed set. fault: whose doing it was. mask: leave this rollout out of
    the batch, do not score it. retry_safe: the request certainly had no effect. details: small
    facts for programs. status: the HTTP status, None if there was no answer. retry_after_s,
    request_id and sandbox_id: as the daemon told, else None.
    """

    CODE: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, detail: str, *, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        facts, told = CODES[self.CODE], dict(problem or {})
        self.detail = detail
        self.code: str = told.get("code") or self.CODE
        self.fault = Fault(told.get("fault") or facts.fault)
        self.mask = bool(told.get("mask", facts.mask))
        self.retry_safe = bool(told.get("retry_safe", facts.retry_safe))
        self.retry_after_s: float | None = told.get("retry_after_s")
        self.status: int | None = told.get("status")
        self.sandbox_id: str | None = told.get("sandbox_id")
        self.request_id: str | None = told.get("request_id")
        self.details: dict[str, Any] = dict(told.get("details") or {})

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class BadRequest(SandboxdError):
    """The request is not valid; the detail names the field."""

    CODE = ErrorCode.BAD_REQUEST


class Unauthenticated(SandboxdError):
    """No valid key was given."""

    CODE = ErrorCode.UNAUTHENTICATED


class Forbidden(SandboxdError):
    """This key may not do that."""

    CODE = ErrorCode.FORBIDDEN


class NotFound(SandboxdError):
    """There is no such object, or it is another key's."""

    CODE = ErrorCode.NOT_FOUND


class Conflict(SandboxdError):
    """The object is in another state, or the id is in use for something else."""

    CODE = ErrorCode.CONFLICT


class LeaseEnded(SandboxdError):
    """The lease has ended: released, expired, idle or its run was lost; `details["end"]` says."""

    CODE = ErrorCode.LEASE_ENDED


class SandboxLost(SandboxdError):
    """The sandbox is gone, and not because its lease ended."""

    CODE = ErrorCode.SANDBOX_LOST


class TooLarge(SandboxdError):
    """The body is over the limit."""

    CODE = ErrorCode.TOO_LARGE


class QuotaExceeded(SandboxdError):
    """This key's own quota or rate is used up."""

    CODE = ErrorCode.QUOTA_EXCEEDED


class Capacity(SandboxdError):
    """No sandbox became free in time; `details` has `position` and `expected_wait_s`."""

    CODE = ErrorCode.CAPACITY


class ShuttingDown(SandboxdError):
    """The daemon is stopping; leases live on."""

    CODE = ErrorCode.SHUTTING_DOWN


class BackendUnavailable(SandboxdError):
    """The engine or cluster below the daemon does not answer."""

    CODE = ErrorCode.BACKEND_UNAVAILABLE


class ImageUnavailable(SandboxdError):
    """The image cannot be had."""

    CODE = ErrorCode.IMAGE_UNAVAILABLE


class StartFailed(SandboxdError):
    """A sandbox, kernel or server could not be started."""

    CODE = ErrorCode.START_FAILED


class KernelDied(SandboxdError):
    """The kernel is dead."""

    CODE = ErrorCode.KERNEL_DIED


class KernelBusy(SandboxdError):
    """The kernel's queue is full."""

    CODE = ErrorCode.KERNEL_BUSY


class FileNotFound(SandboxdError):
    """There is no such file in the sandbox."""

    CODE = ErrorCode.FILE_NOT_FOUND


class FileIsDirectory(SandboxdError):
    """A file was wanted, the path is a directory."""

    CODE = ErrorCode.FILE_IS_DIRECTORY


class FileNotDirectory(SandboxdError):
    """A directory was wanted, the path (or a part of it) is none."""

    CODE = ErrorCode.FILE_NOT_DIRECTORY


class FileExists(SandboxdError):
    """Something is at that path already."""

    CODE = ErrorCode.FILE_EXISTS


class FileForbidden(SandboxdError):
    """The sandbox's user may not do that."""

    CODE = ErrorCode.FILE_FORBIDDEN


class NameTooLong(SandboxdError):
    """The path, or a part of it, is too long."""

    CODE = ErrorCode.NAME_TOO_LONG


class DiskFull(SandboxdError):
    """The sandbox's disk is full."""

    CODE = ErrorCode.DISK_FULL


class NotSupported(SandboxdError):
    """This backend cannot do that."""

    CODE = ErrorCode.NOT_SUPPORTED


class Timeout(SandboxdError):
    """A deadline of the daemon's own passed."""

    CODE = ErrorCode.TIMEOUT


class Internal(SandboxdError):
    """Something of the daemon's broke, or it spoke what this SDK does not understand."""

    CODE = ErrorCode.INTERNAL


class ApiUnreachable(SandboxdError):
    """The daemon could not be asked, or its answer was lost on the way: our fault, so masked.

    retry_safe: no byte of the request can have reached the daemon. False means that it may have
    been carried out.
    """

    def __init__(self, detail: str, *, retry_safe: bool, status: int | None = None) -> None:
        super().__init__(
            detail,
            problem={
                "code": "api_unreachable",
                "fault": Fault.INFRA,
                "mask": True,
                "retry_safe": retry_safe,
                "status": status,
            },
        )


class CommandFailed(Exception):
    """A command did not exit with 0; `.result` has everything. The sandbox is well.

    code, fault and mask are the result's verdict: an ordinary non-zero exit has no code and no
    fault, and is never masked.
    """

    def __init__(self, result: ExecResult) -> None:
        super().__init__(result)
        self.result = result
        self.code: str | None = result.error.code if result.error else None
        self.fault = result.fault
        self.mask = result.mask

    def __str__(self) -> str:
        how = {"exited": f"exit code {self.result.exit_code}"}.get(
            self.result.outcome or "", str(self.result.outcome)
        )
        last_words = (self.result.stderr or self.result.stdout).strip()[-_LAST_WORDS_CHARS:]
        return f"the command ended with {how}" + (f": {last_words}" if last_words else "")


class CellFailed(Exception):
    """A cell did not end `ok`; `.cell` has everything. The sandbox is well.

    fault and mask are the cell's verdict: an ordinary exception has no fault, and is never masked.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.cell = cell
        self.fault = cell.fault
        self.mask = cell.mask

    def __str__(self) -> str:
        error = self.cell.error
        what = f": {error.ename}: {error.evalue}" if error is not None else ""
        return f"the cell ended with {self.cell.outcome or 'no end yet'}" + what[:_LAST_WORDS_CHARS]


_LAST_WORDS_CHARS = 500  # of output shown in the message; the whole of it is in `.result`

ERROR_CLASSES: dict[str, type[SandboxdError]] = {
    cls.CODE: cls
    for cls in (
        BadRequest, Unauthenticated, Forbidden, NotFound, Conflict, LeaseEnded, SandboxLost,
        TooLarge, QuotaExceeded, Capacity, ShuttingDown, BackendUnavailable, ImageUnavailable,
        StartFailed, KernelDied, KernelBusy, FileNotFound, FileIsDirectory, FileNotDirectory,
        FileExists, FileForbidden, NameTooLong, DiskFull, NotSupported, Timeout, Internal,
    )
}  # fmt: skip


def error_from_problem(problem: Mapping[str, Any]) -> SandboxdError:
    """The typed error for a `problem+json` object, or for the `end` of a lease.

    A code that this SDK does not know (a newer daemon's) becomes a plain SandboxdError with it.
    """
    code = str(problem.get("code") or ErrorCode.INTERNAL)
    known = dict(problem)
    if known.get("fault") not in set(Fault):
        known.pop("fault", None)
    detail = str(problem.get("detail") or problem.get("title") or code)
    return ERROR_CLASSES.get(code, SandboxdError)(detail, problem=known)


def error_from_end(end: Mapping[str, Any], *, sandbox_id: str) -> SandboxdError:
    """The typed error for a lease that ended before it could be used."""
    problem = {
        **end,
        "code": end.get("code") or ErrorCode.LEASE_ENDED,
        "detail": end.get("detail") or f"the lease ended: {end.get('reason')}",
        "sandbox_id": sandbox_id,
        "details": {"end": dict(end)},
    }
    return error_from_problem(problem)
