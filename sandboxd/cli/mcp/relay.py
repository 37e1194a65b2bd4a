"""The daemon's own MCP server on standard streams: each line goes there as a request of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.cli.faults import ExitCode
from sandboxd_client import AsyncSandboxd, SandboxdError

_REFUSED = -32003
_MOST_AT_ONCE = 64


async def relay(client: AsyncSandboxd) -> int:
    """Until standard input ends, and all that was asked is answered."""
    room = CapacityLimiter(_MOST_AT_ONCE)
    scopes: dict[Any, anyio.CancelScope] = {}

    async def answer(message: dict[str, Any]) -> None:
        async with room:
            with anyio.CancelScope() as scopes[message["id"]]:
                _say(await _ask(client, message))
            del scopes[message["id"]]

    async with anyio.create_task_group() as tasks:
        while line := await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            message = _read(line)
            if message is None:
                continue
            if message.get("method") == "notifications/cancelled":
                scope = scopes.get((message.get("params") or {}).get("requestId"))
                if scope is not None:
                    scope.cancel()
            elif "method" in message and "id" in message:
                tasks.start_soon(answer, message, name="mcp-relay")
    return ExitCode.OK


async def _ask(client: AsyncSandboxd, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return await client.speak_mcp(message)
    except SandboxdError as error:
        told = {"code": _REFUSED, "message": str(error), "data": {"code": error.code}}
        return {"jsonrpc": "2.0", "id": message["id"], "error": told}


def _read(line: str) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        print(f"sandboxd: no JSON: {line[:80]!r}", file=sys.stderr)
        return None
    return message if isinstance(message, dict) else None


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
