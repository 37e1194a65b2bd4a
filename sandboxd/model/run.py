"""Runs: a trainer's heartbeat. Leases that name a run end when its heartbeat stops.

    ACTIVE ──► LOST     (not heard of for its ttl)

Forgetting a run makes its name free again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandboxd.wire.codes import EndReason

RunKey = tuple[str, str]  # owner and run_id: another key's run of the same name is another run


class RunState(StrEnum):
    """Whether a run is heard of."""

    ACTIVE = "active"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The record of a run: what the store keeps. When it was last heard of is not in it: after a
    daemon's start each active run has one whole ttl. began_at, lost_at: Unix seconds.
    """

    run_id: str
    owner: str  # name of the key that beats
    ttl_s: float
    began_at: float
    state: RunState = RunState.ACTIVE
    lost_at: float | None = None

    @property
    def key(self) -> RunKey:
        """What tells it from every other."""
        return self.owner, self.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as a reader should see it now.

    expires_at: when it is lost unless it is heard of, or when it was lost; Unix seconds. leased,
    queued: its sandboxes now. ended: how many ended for which reason, since this daemon started
    and for an hour before.
    """

    run: Run
    expires_at: float
    leased: int
    queued: int
    ended: Mapping[EndReason, int] = field(default_factory=dict)
