"""The tables of MCP servers, `[templates.NAME.mcp_servers.NAME]` and `[mcp_servers.NAME]`, and
what becomes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from sandboxd.model.mcp_server import McpServer, SharedMcpServer
from sandboxd.settings.fields import Environment, Filled, Name, Table, Text


class McpProgramTable(Table):
    """How one server is started and spoken to."""

    command: list[Filled] = Field([], max_length=1024)
    """The server's argv. Without `port` it speaks stdio."""
    port: int = Field(0, ge=0, le=65535)
    """Port inside on which it speaks streamable HTTP; 0: it speaks stdio."""
    path: Text = "/mcp"
    """Path of its HTTP address."""
    env: Environment = {}
    """Environment of the server, over the sandbox's."""
    cwd: Text = ""
    """Working directory; empty: the sandbox's."""
    hidden: dict[Filled, Text] = Field({}, max_length=64)
    """Arguments of its tools that callers neither see nor give, and what they are filled with:
    text with {sandbox_id}, {run_id}, {group_id}, {rollout_id} and {label.KEY}."""


class McpServerTable(McpProgramTable):
    """An MCP server that a template's sandboxes have."""

    scope: Literal["rollout", "shared"] = "rollout"
    """One per sandbox; or `shared`, for one of that name at the top of the file."""
    prestart: bool = False
    """Already running in warm sandboxes; else started on first use."""
    restart: Literal["never", "on_exit"] = "never"
    """Whether one that ended is started anew, without its state; calls on one that is not are
    errors."""


class ReplicasTable(Table):
    """How many sandboxes a shared server may have."""

    min: int = Field(0, ge=0, le=1000)
    """That it keeps once it was used."""
    max: int = Field(1, ge=1, le=1000)
    """At most."""

    @model_validator(mode="after")
    def _in_order(self) -> ReplicasTable:
        if self.min > self.max:
            msg = f"`min` ({self.min}) is over `max` ({self.max})"
            raise ValueError(msg)
        return self


class SharedMcpServerTable(McpProgramTable):
    """An MCP server without state, for all leases."""

    template: Name
    """The template of the sandboxes that it runs in."""
    scope: Literal["shared"] = "shared"
    """Always `shared` here."""
    replicas: ReplicasTable = Field(default_factory=ReplicasTable)
    """How many sandboxes it has: as many as its calls need, between these."""
    max_in_flight: int = Field(16, ge=1, le=10_000)
    """Calls that one of them has at once; more start another, or wait."""
    idle_s: float = Field(300, gt=0, le=86400)
    """Seconds without a call after which one more than `replicas.min` is ended."""


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
