"""The daemon's own MCP server: one bridge for each key, so that nobody acts with another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxd.api.auth import Principal
from sandboxd.api.mcp.own_server import OwnServer
from sandboxd.api.services import Services

if TYPE_CHECKING:
    from sandboxd.mcp.clients.bridge import Bridge


class OwnBridges:
    """Made when they are wanted; as many as there are keys."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._by_owner: dict[str | None, Bridge] = {}

    async def of(self, caller: Principal) -> Bridge:
        """The one of a caller's key. The operator acts as nobody's, and so may see all."""
        if caller.owner not in self._by_owner:
            server = OwnServer(self._services, owner=caller.owner)
            bridge = await self._services.mcp.own_bridge(server)
            self._by_owner.setdefault(caller.owner, bridge)
        return self._by_owner[caller.owner]
