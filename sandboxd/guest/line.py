"""Connections to one guest: kept, used, given up. Knows HTTP and the guest's errors, no nouns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio
from anyio import TypedAttributeSet, typed_attribute
from anyio.abc import ByteStream

from sandboxd.errors import SandboxdError
from sandboxd.guest.facts import is_encodable, is_plain
from sandboxd.wire.codes import ErrorCode, Fault
from sandboxd.wire.http1 import AsyncConnection, AsyncResponse, ConnectionLost, Headers
from sandboxd.wire.streams import AnyioStream

MAX_ANSWER_BYTES = 1 << 20
_MAX_ERROR_BYTES = 1 << 16
_MAX_DETAIL_CHARS = 4000
_MAX_IDLE = 4
_IDLE_LIFE_S = 30.0


class LineAttribute(TypedAttributeSet):
    """What a stream to a guest says of itself."""

    half_closes: bool = typed_attribute()  # each direction ends by itself; not said: it does


Connect = Callable[[], Awaitable[ByteStream]]


class GuestLost(Exception):
    """The line to the guest broke, or the guest spoke nonsense.

    Whether its box lives is another question, for the backend's `look`.
    sent: False means that the request certainly had no effect.
    """

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.sent = sent

    def named(self, *, sandbox_id: str | None = None) -> SandboxdError:
        """What a caller hears once it is known that the box lives."""
        return SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"the line into the sandbox broke ({self}); the sandbox lives",
            retry_safe=not self.sent,
            sandbox_id=sandbox_id,
        )


class Answer(NamedTuple):
    """A whole answer of the guest: a success."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> str:
        """The first header of that lower-case name, or nothing."""
        return next((v.decode("latin-1") for k, v in self.headers if k == name), "")


class _Failure(NamedTuple):
    """A guest's error code in our words; status where it is not our code's own."""

    code: ErrorCode
    status: int | None = None


# `internal` and `unauthenticated` are ours alone: no caller can cause or mend them.
_FAILURES = {
    "bad_request": _Failure(ErrorCode.BAD_REQUEST),
    "unauthenticated": _Failure(ErrorCode.INTERNAL),
    "not_found": _Failure(ErrorCode.NOT_FOUND),
    "conflict": _Failure(ErrorCode.CONFLICT),
    "gone": _Failure(ErrorCode.CONFLICT, 410),
    "too_large": _Failure(ErrorCode.TOO_LARGE),
    "range": _Failure(ErrorCode.BAD_REQUEST, 416),
    "file_not_found": _Failure(ErrorCode.FILE_NOT_FOUND),
    "file_is_directory": _Failure(ErrorCode.FILE_IS_DIRECTORY),
    "file_not_directory": _Failure(ErrorCode.FILE_NOT_DIRECTORY),
    "file_exists": _Failure(ErrorCode.FILE_EXISTS),
    "file_forbidden": _Failure(ErrorCode.FILE_FORBIDDEN),
    "name_too_long": _Failure(ErrorCode.NAME_TOO_LONG),
    "disk_full": _Failure(ErrorCode.DISK_FULL),
    "busy": _Failure(ErrorCode.CONFLICT),
    "internal": _Failure(ErrorCode.INTERNAL),
}


def guest_failure(body: bytes) -> SandboxdError:
    """What the guest refused, as an error of ours. Raises GuestLost if it is no refusal at all."""
    try:
        problem = json.loads(body)
        code, detail = problem["code"], str(problem.get("detail", ""))[:_MAX_DETAIL_CHARS]
        failure = _FAILURES[code]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise GuestLost("the guest's refusal cannot be read", sent=True) from None
    told = problem.get("details")
    details = told if isinstance(told, dict) and is_plain(told) else {}
    fault, mask = _whose(details)
    return SandboxdError(
        failure.code,
        detail if detail and is_encodable(detail) else code,
        fault=fault,
        mask=mask,
        details=details,
        status=failure.status,
    )


def _whose(details: Mapping[str, Any]) -> tuple[Fault | None, bool | None]:
    """Fault and mask, where the guest saw more than the code says: the machine's want, or what
    something inside took away.
    """
    if details.get("host_short") is True:
        return Fault.INFRA, True
    if details.get("from_inside") is True:
        return Fault.AGENT, False
    return None, None


class Line:
    """Requests to one guest over at most four kept connections; more are opened as needed.

    Concurrent calls are fine: each has a connection of its own. There is no task here and no
    deadline: an idle connection's age is checked when it is about to be used, and callers bound
    their waits. A cancelled call closes its connection; what the guest began goes on.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._headers: Headers = [(b"host", b"guest")]
        self._idle: list[tuple[AsyncConnection, float]] = []
        self._closed = False

    async def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        repeatable: bool = True,
        limit: int = MAX_ANSWER_BYTES,
    ) -> Answer:
        """Ask, and read the whole answer of at most `limit` bytes.

        repeatable: asking twice does no more than asking once, so a kept connection may be used;
        if that one turns out to be dead, a fresh one is tried, once.
        Raises SandboxdError for what the guest refuses (or the backend, when it connects), and
        GuestLost.
        """
        lost: GuestLost | None = None
        kept = await self._take_idle() if repeatable else None
        if kept is not None:
            try:
                return await self._exchange(kept, method, target, body, limit)
            except GuestLost as error:
                lost = error
        _, connection = await self._fresh(lost)
        return await self._exchange(connection, method, target, body, limit)

    async def open(
        self,
        method: str,
        target: str,
        headers: Headers | Callable[[ByteStream], Headers] | None = None,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> tuple[AsyncConnection, AsyncResponse]:
        """Ask on a fresh connection, and hand over connection and unread answer.

        headers: beside those of every request, or what gives them for the stream that is there.
        The caller gives the connection back to `keep` or `drop`. Raises as `call`.
        """
        stream, connection = await self._fresh(None)
        more = headers(stream) if callable(headers) else headers or ()
        try:
            response = await connection.request(method, target, [*self._headers, *more], body)
            if response.status >= 400:
                raise guest_failure(await response.read(limit=_MAX_ERROR_BYTES))
        except ConnectionLost as error:
            raise GuestLost(str(error), sent=error.sent) from error
        except SandboxdError:
            await self.keep(connection)
            raise
        except BaseException:
            await drop(connection)
            raise
        return connection, response

    async def finish(self, connection: AsyncConnection, response: AsyncResponse) -> bytes:
        """Read the small answer of an `open` to its end, and keep its connection."""
        try:
            body = await response.read(limit=MAX_ANSWER_BYTES)
        except ConnectionLost as error:
            await drop(connection)
            raise GuestLost(str(error), sent=True) from error
        except BaseException:
            await drop(connection)
            raise
        await self.keep(connection)
        return body

    async def keep(self, connection: AsyncConnection) -> None:
        """Take a connection back: kept if it is fit and there is room, else closed."""
        if connection.idle and not self._closed and len(self._idle) < _MAX_IDLE:
            self._idle.append((connection, anyio.current_time()))
        else:
            await drop(connection)

    async def drop_idle(self) -> None:
        """Close what is kept. Calls in flight go on."""
        while self._idle:
            await drop(self._idle.pop()[0])

    async def aclose(self) -> None:
        """Close what is kept, and keep nothing from now on. Idempotent."""
        self._closed = True
        await self.drop_idle()

    async def _take_idle(self) -> AsyncConnection | None:
        oldest = anyio.current_time() - _IDLE_LIFE_S
        while self._idle:
            connection, since = self._idle.pop()
            if since >= oldest:
                return connection
            await drop(connection)
        return None

    async def _fresh(self, lost: GuestLost | None) -> tuple[ByteStream, AsyncConnection]:
        """A new stream and its connection. lost: how a first try of the same request ended."""
        try:
            stream = await self._connect()
            return stream, AsyncConnection(AnyioStream(stream))
        except OSError as error:
            raise GuestLost(str(error), sent=lost is not None and lost.sent) from error
        except SandboxdError as error:
            # The first try may have had its effect, which this error would deny.
            if lost is not None and lost.sent and error.retry_safe:
                raise lost from error
            raise

    async def _exchange(
        self, connection: AsyncConnection, method: str, target: str, body: bytes | None, limit: int
    ) -> Answer:
        try:
            status, headers, data = await connection.exchange(
                method, target, self._headers, body, limit=max(limit, _MAX_ERROR_BYTES)
            )
        except ConnectionLost as error:
            await drop(connection)
            raise GuestLost(str(error), sent=error.sent) from error
        except BaseException:
            await drop(connection)
            raise
        await self.keep(connection)
        if status >= 400:
            raise guest_failure(data)
        if len(data) > limit:
            raise GuestLost(f"the answer is longer than {limit} bytes", sent=True)
        return Answer(status, headers, data)


async def drop(connection: AsyncConnection) -> None:
    """Close a connection at once, whatever is being cancelled. Never waits for the peer."""
    with anyio.CancelScope(shield=True):
        await connection.aclose()
