"""A client of the older line of the `mcp` package: `python older_client.py URL`, with calls on
standard input as JSON lines `[tool, arguments]`. Prints what each answers, as JSON lines; first
the names of all tools.
"""

from __future__ import annotations

import json
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(url: str) -> None:
    """One session."""
    async with (
        streamable_http_client(url) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        print(json.dumps(sorted(tool.name for tool in (await session.list_tools()).tools)))
        for line in sys.stdin:
            tool, arguments = json.loads(line)
            result = await session.call_tool(tool, arguments)
            print(json.dumps([getattr(part, "text", None) for part in result.content]), flush=True)


anyio.run(main, sys.argv[1])
