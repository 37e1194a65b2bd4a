"""One sandbox of a shared server. Synchronous but for its start."""

from __future__ import annotations

import anyio

from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.live import LiveServer
from sandboxd.model.mcp_server import McpState


class Replica:
    """passing: HTTP requests that are passed on to it now."""

    def __init__(self, tenancy: Tenancy, live: LiveServer) -> None:
        self.tenancy = tenancy
        self.live = live
        self.passing = 0
        self.used_at = anyio.current_time()

    @property
    def in_flight(self) -> int:
        """Calls that it has now."""
        return self.passing + (self.live.talk.in_flight if self.live.talk is not None else 0)

    @property
    def alive(self) -> bool:
        """Whether it may be given calls."""
        return not self.tenancy.lease.over and self.live.status().state is not McpState.DEAD

    def idle_since(self) -> float | None:
        """When its last call was over; None while it has one."""
        if self.in_flight:
            self.used_at = anyio.current_time()
            return None
        return self.used_at
