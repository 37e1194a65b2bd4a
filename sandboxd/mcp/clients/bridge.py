"""One server and its clients of both eras, told apart by the version that a request names."""

from __future__ import annotations

from typing import Any

from anyio.abc import TaskGroup
from starlette.types import Receive, Scope, Send

from sandboxd.mcp.clients.handshake import Sessions
from sandboxd.mcp.clients.per_request import PerRequest
from sandboxd.mcp.messages import HANDSHAKES
from sandboxd.mcp.target import Target


class Bridge:
    """Serves HTTP requests. tasks: own the sessions."""

    def __init__(self, target: Target, *, tasks: TaskGroup) -> None:
        self._sessions = Sessions(target, tasks=tasks)
        self._per_request = PerRequest(target)

    @property
    def sessions(self) -> int:
        """How many there are."""
        return len(self._sessions)

    async def handle(self, body: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one. body: its JSON, None for none; `receive` gives it once more, and then waits
        for the client to go away.
        """
        version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode("latin-1")
        if version and version not in HANDSHAKES:
            await self._per_request.handle(body, scope, receive, send)
        else:
            message = body if isinstance(body, dict) else None
            await self._sessions.handle(message, scope, receive, send)

    def end(self) -> None:
        """End all sessions."""
        self._sessions.end()
