"""Leases: who holds which box until when. States are a table, end reasons a closed set.

    QUEUED ──► LEASED ──► ENDING ──► ENDED
       └───────────────────────────────▲    (left the queue, make failed)

`ENDING`: the lease is over and its box is being disposed of; `ENDED`: the box is gone.
`MAKING` is how a queued lease is shown while a box is being made for it; no record holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandboxd.model.box import BoxRef
from sandboxd.model.claim import Affinity
from sandboxd.model.mcp_server import McpServer
from sandboxd.model.template import BoxSpec, Capability, Network
from sandboxd.model.way_out import Forward
from sandboxd.wire.codes import EndReason, ErrorCode, Fault


class LeaseState(StrEnum):
    """Where a lease is; see the table in this module's docstring."""

    QUEUED = "queued"
    MAKING = "making"
    LEASED = "leased"
    ENDING = "ending"
    ENDED = "ended"


NEXT_STATES: dict[LeaseState, frozenset[LeaseState]] = {
    LeaseState.QUEUED: frozenset({LeaseState.LEASED, LeaseState.ENDED}),
    LeaseState.LEASED: frozenset({LeaseState.ENDING}),
    LeaseState.ENDING: frozenset({LeaseState.ENDED}),
    LeaseState.ENDED: frozenset(),
}


class Phase(StrEnum):
    """What the time is for: the agent's work, or the grader's look at what is left."""

    ROLLOUT = "rollout"
    GRADING = "grading"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What was asked for, resolved against the template. Neither secrets nor file contents: those
    live in memory and in the guest alone. Times in seconds.

    group_size, group_place: of the group that it was asked for with; 0 for one asked for alone.
    network: what it may reach, which `spec` knows only where the box itself is on that network.
    """

    template: str
    spec: BoxSpec
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    user: str = ""
    capabilities: Capability = "image"
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 3600
    max_timeout_s: float = 86400
    idle_timeout_s: float = 600
    grading_s: float = 0
    run_id: str | None = None
    group_id: str | None = None
    group_size: int = 0
    group_place: int = 0
    rollout_id: str | None = None
    priority: int = 0
    idempotency_key: str | None = None
    body_digest: str = ""
    cold_because: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)
    forwards: tuple[Forward, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Why and when a lease ended, and the verdict on it."""

    reason: EndReason
    code: ErrorCode | None
    fault: Fault | None
    mask: bool
    detail: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a lease used. None where nothing measures it."""

    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    disk_bytes: int | None = None
    execs: int = 0
    cells: int = 0
    leased_s: float = 0.0
    network_in_bytes: int = 0
    network_out_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The record of a lease: what the store keeps and the API shows. Times are Unix seconds.

    `expires_at` is the end of the present phase; `idle_expires_at` None while it is in use or has
    no idle clock.
    """

    id: str
    owner: str  # name of the key that made it
    terms: LeaseTerms
    state: LeaseState
    created_at: float
    backend: str
    phase: Phase = Phase.ROLLOUT
    leased_at: float | None = None
    expires_at: float | None = None
    idle_expires_at: float | None = None
    box: BoxRef | None = None
    affinity: Affinity | None = None  # that its box was claimed with
    warm: bool = False
    lease_wait_s: float | None = None
    end: End | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def over(self) -> bool:
        """Whether it has ended, its box gone or not."""
        return self.state in {LeaseState.ENDING, LeaseState.ENDED}
