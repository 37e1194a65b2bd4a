"""Servers without state that all leases share."""

from __future__ import annotations

from collections.abc import Container, Mapping

from sandboxd.model.mcp_server import SharedMcpServer


class SharedServers:
    """Those of the configuration, by name."""

    def __init__(self, servers: Mapping[str, SharedMcpServer]) -> None:
        self._servers = servers

    @property
    def names(self) -> Container[str]:
        """Of all that there are."""
        return self._servers.keys()
