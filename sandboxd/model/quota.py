"""What one key may hold, as the operator said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds on what the leases of one key take together; None: no bound.

    leases: at once. cpu: cores, as their sandboxes' limits say. memory_mb: likewise.
    creates_per_minute: leases asked for; so many may also come all at once.
    """

    leases: int | None = None
    cpu: float | None = None
    memory_mb: int | None = None
    creates_per_minute: int | None = None
