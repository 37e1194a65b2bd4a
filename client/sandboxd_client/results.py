"""How a command went, as data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sandboxd.wire.codes import Fault, Outcome
from sandboxd_client._core.fields import needed
from sandboxd_client.errors import CommandFailed, Internal


@dataclass(frozen=True, slots=True)
class ExecProblem:
    """Why a command did not just exit: the verdict's code, a reason (`not_found`, …), in words."""

    code: str
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """A command as the daemon tells of it.

    outcome: how it ended, None while `state` is `running`. exit_code: only for `exited`. signal:
    its name without SIG, where one ended it. status: the shell's number, for programs that know
    only numbers; a verdict is never made of it. fault, mask: whose doing, and whether to leave the
    rollout out. stdout, stderr: text with undecodable bytes replaced (`stdout_raw` has the bytes
    if they were asked for); beyond the cap head and tail are there, `*_truncated` is true and
    `*_bytes` counts all of it. output_dropped: the text was given up to make room; the counts
    stand. Times in seconds, `started_at` in Unix time.
    """

    exec_id: str
    state: Literal["running", "ended"] = "ended"
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: str | None = None
    status: int | None = None
    fault: Fault | None = None
    mask: bool = False
    oom_kills: int = 0
    stdout: str = ""
    stderr: str = ""
    stdout_raw: bytes | None = None
    stderr_raw: bytes | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    output_dropped: bool = False
    duration_s: float = 0.0
    started_at: float = 0.0
    error: ExecProblem | None = None
    shell_ended: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and exited with 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @property
    def running(self) -> bool:
        """Whether it had not ended when the daemon told of it."""
        return self.state == "running"

    def check(self) -> ExecResult:
        """Itself if `ok`. Raises CommandFailed otherwise."""
        if not self.ok:
            raise CommandFailed(self)
        return self

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ExecResult:
        """From an Exec as it travels. Raises Internal for an outcome this SDK does not know."""
        outcome, fault, error = told.get("outcome"), told.get("fault"), told.get("error")
        stdout, stdout_raw = _text(told, "stdout")
        stderr, stderr_raw = _text(told, "stderr")
        return cls(
            exec_id=needed(told, "exec_id"),
            state="running" if needed(told, "state") == "running" else "ended",
            outcome=None if outcome is None else _outcome(outcome),
            exit_code=told.get("exit_code"),
            signal=told.get("signal"),
            status=told.get("status"),
            fault=None if fault is None else Fault(fault),
            mask=told.get("mask", False),
            oom_kills=told.get("oom_kills", 0),
            stdout=stdout,
            stderr=stderr,
            stdout_raw=stdout_raw,
            stderr_raw=stderr_raw,
            stdout_bytes=told.get("stdout_bytes", 0),
            stderr_bytes=told.get("stderr_bytes", 0),
            stdout_truncated=told.get("stdout_truncated", False),
            stderr_truncated=told.get("stderr_truncated", False),
            output_dropped=told.get("output_dropped", False),
            duration_s=told.get("duration_s") or 0.0,
            started_at=told.get("started_at") or 0.0,
            error=None if error is None else _problem(error),
            shell_ended=told.get("shell_ended", False),
        )


def _outcome(word: str) -> Outcome:
    try:
        return Outcome(word)
    except ValueError:
        # Guessing here would score a rollout by a word nobody understood.
        raise Internal(f"the daemon told an outcome that this SDK does not know: {word}") from None


def _problem(told: Mapping[str, Any]) -> ExecProblem:
    return ExecProblem(
        code=str(told.get("code")), reason=told.get("reason"), detail=told.get("detail") or ""
    )


def _text(told: Mapping[str, Any], stream: str) -> tuple[str, bytes | None]:
    encoded = told.get(f"{stream}_b64")
    if encoded is None:
        return told.get(stream) or "", None
    raw = base64.b64decode(encoded)
    return raw.decode("utf-8", "replace"), raw
