"""Cells of a kernel: how one went, as data, and the events of one that runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sandboxd.wire.codes import CellOutcome, Fault
from sandboxd_client._core.fields import needed
from sandboxd_client.errors import CellFailed, Internal, error_from_problem

Output = Mapping[str, Any]  # as nbformat 4 has it: `output_type` and what goes with it


@dataclass(frozen=True, slots=True)
class CellError:
    """What a cell raised. traceback: its lines as the kernel wrote them, colours included."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell as the daemon tells of it.

    outcome: how it ended, None while `state` is `running` (or it waits for others). text: what a
    person, or a model, would read: printed text, values and errors in order, without colours, of a
    progress bar the last state. stdout, stderr: what was printed, whole. outputs: as a notebook has
    them (nbformat 4). late_outputs: what threads that it left showed after its end; late: there is
    such. error: what it raised. truncated: something of it was not kept. kernel_restarted: it could
    be ended only so, the variables are gone. fault, mask: whose doing, and whether to leave the
    rollout out; an ordinary error has neither. Times in seconds, `started_at` in Unix time.
    """

    cell_id: str
    state: Literal["running", "ended"] = "ended"
    outcome: CellOutcome | None = None
    execution_count: int | None = None
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    outputs: tuple[Output, ...] = ()
    late_outputs: tuple[Output, ...] = ()
    error: CellError | None = None
    started_at: float | None = None
    duration_s: float = 0.0
    truncated: bool = False
    late: bool = False
    kernel_restarted: bool = False
    fault: Fault | None = None
    mask: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and raised nothing."""
        return self.outcome is CellOutcome.OK

    @property
    def running(self) -> bool:
        """Whether it had not ended when the daemon told of it."""
        return self.state == "running"

    def check(self) -> Cell:
        """Itself if `ok`. Raises CellFailed otherwise."""
        if not self.ok:
            raise CellFailed(self)
        return self

    def to_notebook(self, code: str) -> dict[str, Any]:
        """It and its code as a code cell of a notebook (nbformat 4.5)."""
        return {
            "cell_type": "code",
            "id": _NO_ID.sub("-", self.cell_id)[:64],
            "metadata": {},
            "execution_count": self.execution_count,
            "source": code,
            "outputs": [dict(output) for output in self.outputs],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Cell:
        """From a Cell as it travels. Raises Internal for an outcome this SDK does not know."""
        outcome, fault, error = told.get("outcome"), told.get("fault"), told.get("error")
        return cls(
            cell_id=needed(told, "cell_id"),
            state="running" if needed(told, "state") == "running" else "ended",
            outcome=None if outcome is None else _outcome(outcome),
            execution_count=told.get("execution_count"),
            text=told.get("text") or "",
            stdout=told.get("stdout") or "",
            stderr=told.get("stderr") or "",
            outputs=tuple(told.get("outputs") or ()),
            late_outputs=tuple(told.get("late_outputs") or ()),
            error=None if error is None else _error(error),
            started_at=told.get("started_at"),
            duration_s=told.get("duration_s") or 0.0,
            truncated=told.get("truncated", False),
            late=told.get("late", False),
            kernel_restarted=told.get("kernel_restarted", False),
            fault=None if fault is None else Fault(fault),
            mask=told.get("mask", False),
        )


_NO_ID = re.compile(r"[^A-Za-z0-9_-]")  # what the id of a notebook's cell must not have


def _outcome(word: str) -> CellOutcome:
    try:
        return CellOutcome(word)
    except ValueError:
        # Guessing here would score a rollout by a word nobody understood.
        raise Internal(f"the daemon told an outcome that this SDK does not know: {word}") from None


def _error(told: Mapping[str, Any]) -> CellError:
    lines = tuple(str(line) for line in told.get("traceback") or ())
    return CellError(str(told.get("ename") or ""), str(told.get("evalue") or ""), lines)


# What `Kernel.stream` and `Kernel.attach` yield: a closed union to `match` on. late: it came after
# the cell's end.


@dataclass(frozen=True, slots=True)
class CellStarted:
    """The kernel was given it. `started_at` in Unix time."""

    seq: int
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class CellText:
    """A piece of what it printed."""

    seq: int
    stream: Literal["stdout", "stderr"]
    text: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class CellOutput:
    """A display, the cell's value or its error, as nbformat 4 has it."""

    seq: int
    output: Output
    late: bool = False


@dataclass(frozen=True, slots=True)
class CellUpdate:
    """The displays of that id show something else now."""

    seq: int
    display_id: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    late: bool = False


@dataclass(frozen=True, slots=True)
class CellCleared:
    """Nothing is shown any more; wait: as soon as there is something else to show."""

    seq: int
    wait: bool
    late: bool = False


@dataclass(frozen=True, slots=True)
class InputRequest:
    """It asks for a line of input and waits: `Kernel.input` answers. password: do not show it."""

    seq: int
    prompt: str
    password: bool = False


@dataclass(frozen=True, slots=True)
class CellGap:
    """Something was not kept: so many events, or messages of the kernel, are missing here."""

    seq: int
    missing: int


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The last event: the whole cell."""

    seq: int
    cell: Cell


CellEvent = (
    CellStarted
    | CellText
    | CellOutput
    | CellUpdate
    | CellCleared
    | InputRequest
    | CellGap
    | CellEnded
)


def cell_event_from_json(told: Mapping[str, Any]) -> CellEvent | None:
    """One line of a cell's stream; None for what only keeps the line alive, or is newer than we.

    Raises the typed error that an `error` event carries.
    """
    seq, late = told.get("seq") or 0, bool(told.get("late"))
    match needed(told, "type"):
        case "stdout":
            return CellText(seq, "stdout", needed(told, "data"), late)
        case "stderr":
            return CellText(seq, "stderr", needed(told, "data"), late)
        case "output":
            return CellOutput(seq, needed(told, "output"), late)
        case "update":
            data, metadata = needed(told, "data"), told.get("metadata") or {}
            return CellUpdate(seq, needed(told, "display_id"), data, metadata, late)
        case "clear":
            return CellCleared(seq, bool(told.get("wait")), late)
        case "started":
            return CellStarted(seq, told.get("started_at"))
        case "ended":
            return CellEnded(seq, Cell.from_json(needed(told, "cell")))
        case _:
            return _rare_event(seq, told)


def _rare_event(seq: int, told: Mapping[str, Any]) -> CellEvent | None:
    match needed(told, "type"):
        case "input_request":
            return InputRequest(seq, str(told.get("prompt") or ""), bool(told.get("password")))
        case "gap":
            return CellGap(seq, int(told.get("events") or told.get("messages") or 0))
        case "error":
            raise error_from_problem(told.get("problem") or told.get("error") or told)
        case _:
            return None
