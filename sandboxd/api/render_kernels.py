"""How kernels and cells look on the wire."""

from __future__ import annotations

from typing import Any

from sandboxd.model.kernel import Cell, Kernel


def kernel(noun: Kernel) -> dict[str, Any]:
    """A Kernel."""
    return {
        "kernel_id": noun.kernel_id,
        "spec": noun.spec,
        "state": noun.state,
        "execution_count": noun.execution_count,
    }


def cell(noun: Cell) -> dict[str, Any]:
    """A Cell."""
    error = noun.error
    return {
        "cell_id": noun.cell_id,
        "state": "running" if noun.outcome is None else "ended",
        "outcome": noun.outcome,
        "execution_count": noun.execution_count,
        "text": noun.text,
        "stdout": noun.stdout,
        "stderr": noun.stderr,
        "outputs": noun.outputs,
        "late_outputs": noun.late_outputs,
        "error": None
        if error is None
        else {"ename": error.name, "evalue": error.value, "traceback": error.traceback},
        "started_at": noun.started_at,
        "duration_s": noun.duration_s,
        "truncated": noun.truncated,
        "late": bool(noun.late_outputs),
        "kernel_restarted": noun.kernel_restarted,
        "fault": noun.fault,
        "mask": noun.mask,
    }
