"""Answers about commands and shells."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from sandboxd.api.shapes.parts import Page, Problem
from sandboxd.model.shell import ShellState
from sandboxd.wire.codes import ErrorCode, Fault, Outcome, StartFailure


class ExecError(BaseModel):
    """Why a command did not simply exit."""

    code: ErrorCode
    reason: StartFailure | None
    detail: str | None


class Exec(BaseModel):
    """A command. Output is absent in lists and events, base64 with `encoding=base64`."""

    exec_id: str
    state: Literal["running", "ended"]
    outcome: Outcome | None
    exit_code: int | None
    signal: str | None
    status: int | None
    fault: Fault | None
    mask: bool
    oom_kills: int
    stdout: str = ""
    stderr: str = ""
    stdout_b64: str = ""
    stderr_b64: str = ""
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    output_dropped: bool
    duration_s: float
    started_at: float
    error: ExecError | None
    shell_ended: bool = False
    interrupted: bool = False


class ExecEvent(BaseModel):
    """One line of a stream of events."""

    seq: int
    type: Literal["started", "stdout", "stderr", "gap", "keepalive", "ended", "error"]
    stream: Literal["stdout", "stderr"] | None = None
    offset: int | None = None
    bytes: int | None = None
    data: str | None = None
    data_b64: str | None = None
    started_at: float | None = None
    exec: Exec | None = None
    problem: Problem | None = None


class Shell(BaseModel):
    """A shell that remembers."""

    shell_id: str
    state: ShellState
    program: str


class Execs(Page):
    """Commands, newest first."""

    execs: list[Exec]


class Shells(Page):
    """Shells, newest first."""

    shells: list[Shell]


class StdinTaken(BaseModel):
    """How many bytes of its input a command was given in all."""

    offset: int


class Signalled(BaseModel):
    """What a signal hit."""

    delivered: bool
    state: Literal["running", "ended"]


class Size(BaseModel):
    """A terminal's size."""

    rows: int
    cols: int
