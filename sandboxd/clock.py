"""Wall time, which is only shown and stored; deadlines run on `anyio.current_time`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the house reads the time of day."""

    def now(self) -> float:
        """Unix seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()
