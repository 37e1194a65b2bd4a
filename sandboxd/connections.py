"""Connections of callers held to bounds that the server itself does not set: how many there may be,
how long a request's head may take to arrive, and how large it may grow.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the server's own protocol classes are asyncio's
import resource
from typing import Any

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandboxd.api.problems import problem_body
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import ErrorCode

HEAD_S = 30.0
SILENT_S = 320.0  # for a connection opened ahead of need: callers are promised at least 300
MAX_HEAD_BYTES = 64 << 10
_SHARE_OF_DESCRIPTORS = 0.75  # the rest is for guests, the store and boxes in the making


class GuardedConnection(HttpToolsProtocol):
    """One connection of a caller. Whoever is over a bound is cut off.

    Bodies and answers have bounds of their own, behind the door.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent = True
        self._in_head = False
        self._head_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Turn away whoever comes when the house is full."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._expect_head(SILENT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; then see whether the peer still owes us a head."""
        if self._silent:
            self._silent = False
            self._stop_clock()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head is too large.")
        else:
            self._head_bytes = 0
        # Bytes of no request, and those behind an answered one, are a head that never comes.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self._expect_head(HEAD_S)
        else:
            self._stop_clock()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP with a problem, as every other error."""
        error = SandboxdError(ErrorCode.BAD_REQUEST, msg, status=400)
        request_id = new_id("req")
        body = to_json(problem_body(error, request_id=request_id))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _expect_head(self, within_s: float) -> None:
        if self._head_due is None and not self.transport.is_closing():
            self._head_due = self.loop.call_later(within_s, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


def most_connections() -> int:
    """How many callers may be connected at once, by the descriptors that this process may have."""
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS)
