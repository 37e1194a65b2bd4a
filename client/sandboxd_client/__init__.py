"""The Python SDK of sandboxd: lease a sandbox, run commands in it, move files, give it back.

Every class stands twice: `AsyncSandboxd` for asyncio and trio, `Sandboxd` for programs without an
event loop, with the same names less `Async` and `await`. Failures of a call are `SandboxdError`s,
one class per code; how a command ended is data, an `ExecResult`.
"""

from __future__ import annotations

from sandboxd.wire.codes import ErrorCode, Fault, Outcome
from sandboxd_client._async.client import AsyncSandboxd
from sandboxd_client._async.files import AsyncFiles
from sandboxd_client._async.groups import AsyncGroup
from sandboxd_client._async.process import AsyncProcess
from sandboxd_client._async.runs import AsyncRun
from sandboxd_client._async.sandbox import AsyncSandbox
from sandboxd_client._async.shell import AsyncShell
from sandboxd_client._async.terminal import AsyncTerminal
from sandboxd_client._core.tarballs import UnsafeArchive
from sandboxd_client._sync.client import Sandboxd
from sandboxd_client._sync.files import Files
from sandboxd_client._sync.groups import Group
from sandboxd_client._sync.process import Process
from sandboxd_client._sync.runs import Run
from sandboxd_client._sync.sandbox import Sandbox
from sandboxd_client._sync.shell import Shell
from sandboxd_client._sync.terminal import Terminal
from sandboxd_client.errors import (
    ApiUnreachable,
    BackendUnavailable,
    BadRequest,
    Capacity,
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
from sandboxd_client.options import CommandOptions, FileContent, LeaseOptions
from sandboxd_client.records import (
    Event,
    FileInfo,
    ForwardInfo,
    ImageInfo,
    LeaseEnd,
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
    "AsyncProcess",
    "AsyncRun",
    "AsyncSandbox",
    "AsyncSandboxd",
    "AsyncShell",
    "AsyncTerminal",
    "BackendUnavailable",
    "BadRequest",
    "Capacity",
    "CommandFailed",
    "CommandOptions",
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
    "Internal",
    "KernelBusy",
    "KernelDied",
    "LeaseEnd",
    "LeaseEnded",
    "LeaseOptions",
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
