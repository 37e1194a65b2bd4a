"""A request's body, read whole where it must be looked at, and given on as if it had not been."""

from __future__ import annotations

from typing import Any

import anyio
from pydantic_core import from_json
from starlette.types import Message, Receive

from sandboxd.api.bodies import too_large
from sandboxd.errors import SandboxdError
from sandboxd.mcp.messages import LARGEST_BYTES
from sandboxd.wire.codes import ErrorCode
from sandboxd.wire.json_values import has_more_values

_ARRIVAL_S = 60.0
_KEPT_BYTES = 1 << 20
_UNREAD = object()
_MOST_VALUES = 1 << 20  # plain values, of which no objects of ours are made


class Whole:
    """The `receive` of a request: gives what was read of its body once more, and then goes on.

    What goes by unread is kept as well, as far as it is short: who asked may have to be told.
    """

    __slots__ = ("_again", "_body", "_message", "_pieces", "_receive", "_size")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._again = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._body: bytes | None = None  # once all of it is known
        self._message: Any = _UNREAD

    @property
    def message(self) -> Any:
        """The JSON of what is known of it; None for what is none."""
        if self._message is _UNREAD and self._body is not None:
            self._message = _json_in(self._body)
        return None if self._message is _UNREAD else self._message

    @property
    def size(self) -> int:
        """How much of it is known, in bytes."""
        return len(self._body or b"")

    async def __call__(self) -> Message:
        """ASGI."""
        if self._again:
            self._again = False
            return {"type": "http.request", "body": self._body or b"", "more_body": False}
        message = await self._receive()
        if self._body is None and message["type"] == "http.request":
            self._take(message, most=_KEPT_BYTES)
        return message

    async def read(self) -> bytes:
        """All of it. Raises `too_large`, and `bad_request` (408) for one that does not end."""
        if self._body is not None:
            return self._body
        with anyio.move_on_after(_ARRIVAL_S):
            while self._body is None:
                message = await self._receive()
                if message["type"] != "http.request":
                    break
                self._take(message, most=LARGEST_BYTES)
                if self._size > LARGEST_BYTES:
                    raise too_large()
        if self._body is None:
            text = f"the body did not end within {_ARRIVAL_S:g} s"
            raise SandboxdError(ErrorCode.BAD_REQUEST, text, status=408)
        self._again = True
        return self._body

    def replace(self, body: bytes) -> None:
        """Give this instead of what was read."""
        self._body, self._message = body, _UNREAD

    def _take(self, message: Message, *, most: int) -> None:
        piece: bytes = message.get("body", b"")
        self._size += len(piece)
        if self._size <= most:
            self._pieces.append(piece)
        if not message.get("more_body", False):
            self._body = b"".join(self._pieces) if self._size <= most else b""
            self._pieces.clear()


async def read_whole(whole: Whole) -> Any:
    """Its JSON; None for what is none, of which each era has its own to say."""
    body = await whole.read()
    if has_more_values(body, _MOST_VALUES):
        raise SandboxdError(ErrorCode.BAD_REQUEST, f"a message is limited to {_MOST_VALUES} values")
    return whole.message


def _json_in(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return None
