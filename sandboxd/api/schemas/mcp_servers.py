"""What a lease says of MCP servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sandboxd.api.schemas.fields import Body, Environment, Text
from sandboxd.model.mcp_server import McpServer

ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class McpServerBody(Body):
    """A server of this lease alone; `scope: shared` names one of the configuration."""

    scope: Literal["rollout", "shared"] = "rollout"
    command: Annotated[
        list[Annotated[Text, StringConstraints(min_length=1)]], Field(max_length=1024)
    ] = Field(default_factory=list)
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    path: Text = "/mcp"
    env: Environment = Field(default_factory=dict, repr=False)
    cwd: Text = ""
    restart: Literal["never", "on_exit"] = "never"
    hidden: Annotated[dict[Text, Text], Field(max_length=64)] = Field(default_factory=dict)

    def server(self, name: str) -> McpServer:
        """The noun."""
        return McpServer(
            name=name,
            scope=self.scope,
            command=tuple(self.command),
            port=self.port,
            path=self.path,
            env=tuple(sorted(self.env.items())),
            cwd=self.cwd,
            restart=self.restart,
            hidden=tuple(sorted(self.hidden.items())),
        )


McpServers = Annotated[
    list[ServerName] | dict[ServerName, McpServerBody],
    Field(max_length=64),
]
