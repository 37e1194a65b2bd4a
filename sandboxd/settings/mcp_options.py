"""From the tables of MCP servers to their nouns."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.model.mcp_server import McpServer, SharedMcpServer
from sandboxd.settings.mcp_keys import McpProgramTable, McpServerTable, SharedMcpServerTable


def mcp_servers(tables: Mapping[str, McpServerTable]) -> tuple[McpServer, ...]:
    """What a template's sandboxes have."""
    return tuple(
        _server(name, table, scope=table.scope, prestart=table.prestart, restart=table.restart)
        for name, table in tables.items()
    )


def shared_mcp_server(name: str, table: SharedMcpServerTable) -> SharedMcpServer:
    """One at the top of the file. In its own sandboxes it is like any other."""
    return SharedMcpServer(
        server=_server(name, table),
        template=table.template,
        least=table.replicas.min,
        most=table.replicas.max,
        max_in_flight=table.max_in_flight,
        idle_s=table.idle_s,
    )


def _server(name: str, table: McpProgramTable, **more: object) -> McpServer:
    return McpServer(
        name=name,
        command=tuple(table.command),
        port=table.port,
        path=table.path,
        env=tuple(sorted(table.env.items())),
        cwd=table.cwd,
        hidden=tuple(sorted(table.hidden.items())),
        **more,  # type: ignore[arg-type]
    )
