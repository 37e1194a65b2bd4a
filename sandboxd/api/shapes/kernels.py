"""Answers about kernels and their cells."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page
from sandboxd.model.kernel import KernelState
from sandboxd.wire.codes import CellOutcome, Fault


class Kernel(BaseModel):
    """A kernel."""

    kernel_id: str
    spec: str
    state: KernelState
    execution_count: int


class Kernels(Page):
    """Kernels, newest first."""

    kernels: list[Kernel]


class CellError(BaseModel):
    """What a cell raised."""

    ename: str
    evalue: str
    traceback: list[str]


class Cell(BaseModel):
    """A cell; `outcome` is null while it waits or runs."""

    cell_id: str
    state: Literal["running", "ended"]
    outcome: CellOutcome | None
    execution_count: int | None
    text: str = Field(description="As a model would read it.")
    stdout: str
    stderr: str
    outputs: list[dict[str, Any]] = Field(description="nbformat 4.")
    late_outputs: list[dict[str, Any]] = Field(description="What came after its end.")
    error: CellError | None
    started_at: float | None
    duration_s: float
    truncated: bool
    late: bool
    kernel_restarted: bool
    fault: Fault | None
    mask: bool
