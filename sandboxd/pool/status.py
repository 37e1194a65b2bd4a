"""How a pool stands, as the API and metrics tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One line of `GET /v1/pools`."""

    template: str
    ready: int
    making: int
    leased: int
    disposing: int
    queued: int
    target: int
    max: int
    starting: int
    paused: bool
    last_error: str | None
