"""How long a cell may go on: its deadline, and the grace after an interrupt. Pure, but for clocks.

Times are the event loop's.
"""

from __future__ import annotations

import anyio

from sandboxd.kernels.cells import CellRun

_TIMEOUT_GRACE_S = 5.0  # for code that was interrupted at its deadline
_INTERRUPT_GRACE_S = 10.0  # for code that a caller interrupted


class Patience:
    """With one cell. ran_s: for how long it has run already, under an earlier daemon."""

    def __init__(self, run: CellRun, *, ran_s: float) -> None:
        self._run = run
        timeout_s = run.order.timeout_s
        left_s = float("inf") if timeout_s is None else timeout_s - max(0.0, ran_s)
        self._deadline = anyio.current_time() + left_s
        self._ends = float("inf")

    def interrupt(self) -> None:
        """A caller interrupts it."""
        self._run.interrupted = True
        self._ends = anyio.current_time() + _INTERRUPT_GRACE_S

    def runs_out(self) -> bool:
        """Whether it is to be interrupted now, which is said once."""
        now = anyio.current_time()
        if self._run.timed_out or now < self._deadline:
            return False
        self._run.timed_out = True
        self._ends = now + _TIMEOUT_GRACE_S
        return True

    @property
    def is_over(self) -> bool:
        """Whether it went on after an interrupt for too long."""
        return anyio.current_time() >= self._ends

    @property
    def due(self) -> float:
        """When either is to be asked again."""
        return min(self._ends, float("inf") if self._run.timed_out else self._deadline)
