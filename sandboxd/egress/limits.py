"""What one sandbox's way out may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOutLimits:
    """Of each sandbox. Times in seconds.

    connections: at once. opens_per_s: new ones; as many as `connections` may come in a burst.
    total_bytes: both directions together over a lease's life; 0: no bound. lookups: at once.
    """

    connections: int = 64
    opens_per_s: float = 50.0
    connect_s: float = 10.0
    head_s: float = 30.0
    idle_s: float = 300.0
    total_bytes: int = 0
    lookups: int = 8
