"""The MCP server of the bench: `python mcp_server.py stdio`, or `python mcp_server.py PORT`."""

from __future__ import annotations

import sys

from mcp.server import MCPServer

server = MCPServer("bench")
totals = {"all": 0}


@server.tool()
def add(by: int) -> int:
    """Add to what was added before."""
    totals["all"] += by
    return totals["all"]


if sys.argv[1] == "stdio":
    server.run()
else:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
