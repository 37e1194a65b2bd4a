"""Bodies on their way in, held to their bounds: bytes, values, and the time they may take."""

from __future__ import annotations

import anyio
from starlette.types import Message, Receive

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode
from sandboxd.wire.json_values import has_more_values

MAX_JSON_BYTES = 16 << 20
# Each value costs a hundred times its bytes once it is an object, and a thousand times as the
# complaint that it is wrong: four megabytes of `1,1,1,…` stopped a daemon for twenty seconds.
MAX_JSON_VALUES = 32_768
_ARRIVAL_S = 60.0
_PIECE_S = 300.0  # as long as an idle connection may live


class JsonBody:
    """The `receive` of a request whose body is JSON. Once the body is in, it only passes on.

    Raises `too_large`, and `bad_request` for a body of too many values or one that does not end
    (408).
    """

    __slots__ = ("_due", "_ended", "_pieces", "_receive", "_size")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False
        self._due = anyio.current_time() + _ARRIVAL_S

    async def __call__(self) -> Message:
        """ASGI."""
        if self._ended:
            return await self._receive()
        with anyio.move_on_after(self._due - anyio.current_time()):
            message = await self._receive()
            self._take(message)
            return message
        raise _too_slow(f"the body did not end within {_ARRIVAL_S:g} s")

    def _take(self, message: Message) -> None:
        piece: bytes = message.get("body", b"")
        self._size += len(piece)
        if self._size > MAX_JSON_BYTES:
            raise too_large()
        self._pieces.append(piece)
        if not message.get("more_body", False):
            self._ended = True
            check_values(b"".join(self._pieces))
            self._pieces.clear()


class RawBody:
    """The `receive` of a request whose body is bytes, as many as there are. Raises `bad_request`
    (408) when nothing of it comes for so long that nobody can be left to send it.
    """

    __slots__ = ("_ended", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def __call__(self) -> Message:
        """ASGI."""
        if self._ended:
            return await self._receive()
        with anyio.move_on_after(_PIECE_S):
            message = await self._receive()
            self._ended = not message.get("more_body", False)
            return message
        raise _too_slow(f"nothing of the body came for {_PIECE_S:g} s")


def _too_slow(detail: str) -> SandboxdError:
    return SandboxdError(ErrorCode.BAD_REQUEST, detail, status=408)


def check_values(body: bytes) -> None:
    """Raises `bad_request` for JSON of more than `MAX_JSON_VALUES` values."""
    if not has_more_values(body, MAX_JSON_VALUES):
        return
    raise SandboxdError(
        ErrorCode.BAD_REQUEST,
        f"a JSON body is limited to {MAX_JSON_VALUES} values: send large data through /files",
        details={"limit_values": MAX_JSON_VALUES},
    )


def too_large() -> SandboxdError:
    """A body of more bytes than JSON may have."""
    return SandboxdError(
        ErrorCode.TOO_LARGE,
        f"a JSON body is limited to {MAX_JSON_BYTES} bytes: send large data through /files",
        details={"limit_bytes": MAX_JSON_BYTES},
    )
