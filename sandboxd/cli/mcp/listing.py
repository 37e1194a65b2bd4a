"""`mcp-servers` and `mcp`: the MCP servers there are, and the daemon's own on standard streams."""

from __future__ import annotations

from argparse import Namespace

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import ExitCode
from sandboxd.cli.table import print_json, print_table
from sandboxd_client import AsyncSandboxd, McpServerInfo

_COLUMNS = ("sandbox", "name", "scope", "transport", "state", "restarts", "sessions", "replicas")


def mcp_servers(args: Namespace) -> int:
    """List the MCP servers of sandboxes, or those that all of them share."""

    async def verb(client: AsyncSandboxd) -> int:
        if args.ids:
            found = [
                (sandbox_id, server)
                for sandbox_id in args.ids
                for server in await client.sandbox(sandbox_id).mcp_servers()
            ]
        else:
            found = [("", server) for server in await client.mcp_servers()]
        if args.output == "json":
            shown = [{"sandbox_id": place or None, **server.raw} for place, server in found]
            print_json({"mcp_servers": shown})
        else:
            print_table(_COLUMNS, [_row(place, server) for place, server in found])
        return ExitCode.OK

    return with_client(verb)


def _row(place: str, server: McpServerInfo) -> list[object]:
    return [place, *(getattr(server, column) for column in _COLUMNS[1:])]


def mcp(args: Namespace) -> int:
    """Speak MCP on standard input and output, for clients that start their servers."""
    from sandboxd.cli.mcp.relay import relay

    return with_client(relay)
