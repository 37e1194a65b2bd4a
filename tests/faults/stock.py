"""How much stock the pools of runs with faults keep."""

from __future__ import annotations

READY = 3
