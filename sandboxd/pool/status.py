"""How a pool stands, as the API and metrics tell it."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.pool.experience import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One line of `GET /v1/pools`.

    state: how its makes go. last_error: the last one that failed, None once one went well.
    """

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
    state: Health
    last_error: str | None
