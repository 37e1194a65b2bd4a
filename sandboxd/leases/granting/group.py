"""A group of sandboxes that are leased all or none, while it is being granted."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.pool.admission import Unit
from sandboxd.pool.stock import Box
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.wire.codes import EndReason


@dataclass(slots=True, eq=False)
class Place:
    """One sandbox of a group. box: once its guest was told; claimed_at: when, on the loop's clock.
    warm: the box was in stock.
    """

    tenancy: Tenancy
    warm: bool = False
    box: Box | None = None
    claimed_at: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Group:
    """See the module. `callers`, `departures`, `told`, `settled` as for any request that waits.

    kept: its caller named it, and so can ask for it again. error: why it came to nothing.
    unwanted: end it, for that reason.
    """

    id: str
    pool: WarmPool
    places: list[Place]
    kept: bool
    unit: Unit | None = None
    callers: int = 0
    departures: int = 0
    told: bool = False
    error: SandboxdError | None = None
    unwanted: EndReason | None = None
    granting: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def tenancies(self) -> list[Tenancy]:
        """Its sandboxes, in the order in which they were asked for."""
        return [place.tenancy for place in self.places]

    @property
    def lost(self) -> Tenancy | None:
        """One that is over, if any is."""
        return next((tenancy for tenancy in self.tenancies if tenancy.lease.over), None)

    @property
    def position(self) -> int:
        """Where the last of it stands in the queue; 0 is next."""
        tickets = [tenancy.ticket for tenancy in self.tenancies]
        return max(self.pool.position(ticket) for ticket in tickets if ticket is not None)
