"""Jupyter kernels and their cells: what is asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandboxd.wire.codes import CellOutcome, Fault


class KernelState(StrEnum):
    """Whether a kernel can take a cell now."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOrder:
    """A kernel to start: create-or-attach under `kernel_id`. spec: a kernelspec's name.

    kernel_id: empty for a new kernel under whatever name.
    """

    kernel_id: str = ""
    spec: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as it is now. clients: of Jupyter, on its channels. active_at: Unix seconds."""

    kernel_id: str
    spec: str
    state: KernelState
    execution_count: int = 0
    clients: int = 0
    active_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOrder:
    """Code for a kernel to run, create-or-attach under `cell_id`.

    timeout_s: from when the kernel is given it; None for no bound. stop_on_error: cells that wait
    behind it are aborted if it ends in an error.
    """

    cell_id: str
    code: str
    timeout_s: float | None = None
    allow_stdin: bool = False
    stop_on_error: bool = True
    store_history: bool = True


@dataclass(frozen=True, slots=True)
class CellError:
    """What a cell raised. traceback: lines as the kernel wrote them, colours included."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How a cell went. outcome None: it waits or runs.

    text: what a person, or a model, would read. outputs: nbformat 4. late_outputs: what came after
    its end, from threads that it left. Times in seconds; started_at Unix, None while it waits.
    """

    cell_id: str
    outcome: CellOutcome | None = None
    execution_count: int | None = None
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()
    late_outputs: tuple[Mapping[str, Any], ...] = ()
    error: CellError | None = None
    started_at: float | None = None
    duration_s: float = 0.0
    truncated: bool = False
    kernel_restarted: bool = False
    fault: Fault | None = None
    mask: bool = False
