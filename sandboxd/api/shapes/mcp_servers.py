"""Answers about MCP servers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page
from sandboxd.model.mcp_server import McpState


class McpServer(BaseModel):
    """An MCP server that a sandbox has."""

    name: str
    scope: Literal["rollout", "shared"]
    transport: Literal["stdio", "http"]
    state: McpState = Field(description="A stopped one starts with its first call.")
    restarts: int = Field(description="How often it was started anew after it had ended.")
    sessions: int = Field(description="Of clients that began with `initialize`.")
    replicas: int | None = Field(description="Sandboxes that a shared one has now.")
    url: str


class McpServers(Page):
    """MCP servers, in the order of their declaration."""

    mcp_servers: list[McpServer]
