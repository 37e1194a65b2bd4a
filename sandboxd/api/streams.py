"""Responses that flow, and calls that end when their caller goes away or the daemon stops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeVar

import anyio
import structlog
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxd.api.problems import CallerGone, problem_body, translate
from sandboxd.api.services import services_of
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_NDJSON_HEADERS = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

log = structlog.get_logger(__name__)

T = TypeVar("T")
StartBody = Callable[[int, dict[str, str]], Awaitable[None]]
Emit = Callable[[bytes], Awaitable[None]]


async def while_there(request: Request, call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call that is cancelled when its caller goes away.

    Raises CallerGone then. What the call had begun inside a sandbox runs on.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return await _unless(gone, call, CallerGone())


async def waiting(request: Request, call: Callable[[], Awaitable[T]]) -> T:
    """The same for a call that may wait long: also cancelled when the daemon stops.

    Raises `shutting_down` then. What was waited for goes on, and can be asked for again.
    """
    stopping = services_of(request).stopping
    return await while_there(request, lambda: _unless(stopping.wait, call, _stopped()))


async def _unless(
    event: Callable[[], Awaitable[object]], call: Callable[[], Awaitable[T]], otherwise: Exception
) -> T:
    """The result of a call. If the event comes first it is cancelled, and `otherwise` raised."""
    results: list[T] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await event()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch, name="watch-call")
        try:
            results.append(await call())
        except Exception as error:  # noqa: BLE001 - carried out of the task group, raised below
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise otherwise
    return results[0]


def _stopped() -> SandboxdError:
    """What was waited for may have begun, so only a request with an id may be sent again."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; what was waited for goes on: ask again in a moment",
        retry_safe=False,
        retry_after_s=2.0,
    )


async def until_stopped(request: Request, pour: Callable[[], Awaitable[None]]) -> None:
    """Pour a stream. One that is open when the daemon stops just ends: its reader comes back."""
    with suppress(_Stopped):
        await _unless(services_of(request).stopping.wait, pour, _Stopped())


class Flow(Response):
    """A streamed response whose source is opened only when it is sent, so that a caller who is gone
    by then leaves nothing open.

    source: called with `start` (status, headers) and `emit`; what it raises before `start` becomes
    a problem, after it the connection is cut: never a whole answer with something missing. Of an
    answer to HEAD only the head is sent.
    """

    def __init__(self, source: Callable[[StartBody, Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        started = False

        async def start(status: int, headers: dict[str, str]) -> None:
            nonlocal started
            started = True
            raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})
            if scope["state"].get("head_only"):
                raise _HeadSent

        async def emit(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def run() -> None:
            await self._source(start, emit)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        request = Request(scope, receive)
        try:
            await while_there(request, run)
        except CallerGone:
            return
        except _HeadSent:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (SandboxdError, TimeoutError) as error:
            cut = scope["state"].get("cut")
            if not started or cut is None:
                raise
            named = translate(error)
            log.info("answer-cut", path=scope["path"], code=named.code, detail=named.detail)
            cut()


class _HeadSent(Exception):
    """No error: all that was asked for is on its way."""


class _Stopped(Exception):
    """No error either: the reader comes back."""


Lines = AsyncGenerator[tuple[int, bytes], None]


def ndjson(request: Request, lines: Callable[[], Lines], *, request_id: str) -> Flow:
    """Lines as they come, each with its number. A stream that cannot go on ends with an `error`
    line: its problem, and the number it went up to. One that is open when the daemon stops just
    ends, which tells its reader to attach again.
    """

    async def source(start: StartBody, emit: Emit) -> None:
        async with aclosing(lines()) as flow:
            seq, first = await anext(flow)  # an error before the first line is a plain problem
            await start(200, _NDJSON_HEADERS)

            async def pour() -> None:
                nonlocal seq
                await emit(first)
                async for number, line in flow:
                    await emit(line)
                    seq = number

            try:
                await until_stopped(request, pour)
            except (SandboxdError, TimeoutError) as error:
                body = problem_body(translate(error), request_id=request_id)
                await emit(to_json({"seq": seq, "type": "error", "problem": body}) + b"\n")

    return Flow(source)
