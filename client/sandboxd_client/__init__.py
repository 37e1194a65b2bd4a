"""The Python SDK of sandboxd: lease a sandbox, run commands in it, move files, give it back.

Every class stands twice: `AsyncSandboxd` for asyncio and trio, `Sandboxd` for programs without an
event loop, with the same names less `Async` and `await`. Failures of a call are `SandboxdError`s,
one class per code; how a command ended is data, an `ExecResult`.
"""

from __future__ import annotations

from sandboxd.wire.codes import CellOutcome, ErrorCode, Fault, Outcome
from sandboxd_client._async.client import AsyncSandboxd
from sandboxd_client._async.files import AsyncFiles
from sandboxd_client._async.groups import AsyncGroup
from sandboxd_client._async.kernels.kernel import AsyncKernel
from sandboxd_client._async.process import AsyncProcess
from sandboxd_client._async.runs import AsyncRun
from sandboxd_client._async.sandbox import AsyncSandbox
from sandboxd_client._async.shell import AsyncShell
from sandboxd_client._async.terminal import AsyncTerminal
from sandboxd_client._core.tarballs import UnsafeArchive
from sandboxd_client._sync.client import Sandboxd
from sandboxd_client._sync.files import Files
from sandboxd_client._sync.groups import Group
from sandboxd_client._sync.kernels.kernel import Kernel
from sandboxd_client._sync.process import Process
from sandboxd_client._sync.runs import Run
from sandboxd_client._sync.sandbox import Sandbox
from sandboxd_client._sync.shell import Shell
from sandboxd_client._sync.terminal import Terminal
from sandboxd_client.cells import (
    Cell,
    CellCleared,
    CellEnded,
    CellError,
    CellEvent,
    CellGap,
    CellOutput,
    CellStarted,
    CellText,
    CellUpdate,
    InputRequest,
)
from sandboxd_client.errors import (
    ApiUnreachable,
    BackendUnavailable,
    BadRequest,
    Capacity,
    CellFailed,
    CommandFailed,
    Conflict,
    DiskFull,
    FileExists,
    FileForbidden,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    Forbidden,
    ImageUnavailable,
    Internal,
    KernelBusy,
    KernelDied,
    LeaseEnded,
    NameTooLong,
    NotFound,
    NotSupported,
    QuotaExceeded,
    SandboxdError,
    SandboxLost,
    ShuttingDown,
    StartFailed,
    Timeout,
    TooLarge,
    Unauthenticated,
    error_from_problem,
)
from sandboxd_client.events import Ended, ExecEvent, Gap, Started, Stderr, Stdout
from sandboxd_client.options import CellOptions, CommandOptions, FileContent, LeaseOptions
from sandboxd_client.records import (
    Completion,
    Event,
    FileInfo,
    ForwardInfo,
    ImageInfo,
    Inspection,
    KernelInfo,
    LeaseEnd,
    McpServerInfo,
    PoolInfo,
    QueuePlace,
    QuotaInfo,
    Readings,
    Released,
    RunInfo,
    SandboxInfo,
    SandboxToken,
    TemplateInfo,
    VersionInfo,
)
from sandboxd_client.results import ExecProblem, ExecResult

__all__ = [
    "ApiUnreachable",
    "AsyncFiles",
    "AsyncGroup",
    "AsyncKernel",
    "AsyncProcess",
    "AsyncRun",
    "AsyncSandbox",
    "AsyncSandboxd",
    "AsyncShell",
    "AsyncTerminal",
    "BackendUnavailable",
    "BadRequest",
    "Capacity",
    "Cell",
    "CellCleared",
    "CellEnded",
    "CellError",
    "CellEvent",
    "CellFailed",
    "CellGap",
    "CellOptions",
    "CellOutcome",
    "CellOutput",
    "CellStarted",
    "CellText",
    "CellUpdate",
    "CommandFailed",
    "CommandOptions",
    "Completion",
    "Conflict",
    "DiskFull",
    "Ended",
    "ErrorCode",
    "Event",
    "ExecEvent",
    "ExecProblem",
    "ExecResult",
    "Fault",
    "FileContent",
    "FileExists",
    "FileForbidden",
    "FileInfo",
    "FileIsDirectory",
    "FileNotDirectory",
    "FileNotFound",
    "Files",
    "Forbidden",
    "ForwardInfo",
    "Gap",
    "Group",
    "ImageInfo",
    "ImageUnavailable",
    "InputRequest",
    "Inspection",
    "Internal",
    "Kernel",
    "KernelBusy",
    "KernelDied",
    "KernelInfo",
    "LeaseEnd",
    "LeaseEnded",
    "LeaseOptions",
    "McpServerInfo",
    "NameTooLong",
    "NotFound",
    "NotSupported",
    "Outcome",
    "PoolInfo",
    "Process",
    "QueuePlace",
    "QuotaExceeded",
    "QuotaInfo",
    "Readings",
    "Released",
    "Run",
    "RunInfo",
    "Sandbox",
    "SandboxInfo",
    "SandboxLost",
    "SandboxToken",
    "Sandboxd",
    "SandboxdError",
    "Shell",
    "ShuttingDown",
    "StartFailed",
    "Started",
    "Stderr",
    "Stdout",
    "TemplateInfo",
    "Terminal",
    "Timeout",
    "TooLarge",
    "Unauthenticated",
    "UnsafeArchive",
    "VersionInfo",
    "error_from_problem",
]
