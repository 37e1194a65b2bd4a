"""Responses that flow, and calls that end when their caller goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import anyio
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxd.api.problems import problem_body, translate
from sandboxd.errors import SandboxdError

_NDJSON_HEADERS = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

T = TypeVar("T")
StartBody = Callable[[int, dict[str, str]], Awaitable[None]]
Emit = Callable[[bytes], Awaitable[None]]


class CallerGone(Exception):
    """The caller closed its connection; nobody hears the answer."""


async def while_there(request: Request, call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call that is cancelled when its caller goes away.

    Raises CallerGone then. What the call had begun inside a sandbox runs on.
    """
    results: list[T] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch, name="watch-caller")
        try:
            results.append(await call())
        except Exception as error:  # noqa: BLE001 - carried out of the task group, raised below
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise CallerGone
    return results[0]


class Flow(Response):
    """A streamed response whose source is opened only when it is sent, so that a caller who is gone
    by then leaves nothing open.

    source: called with `start` (status, headers) and `emit`; what it raises before `start` becomes
    a problem, after it the connection is cut.
    """

    def __init__(self, source: Callable[[StartBody, Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def start(status: int, headers: dict[str, str]) -> None:
            raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})

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


def ndjson(lines: Callable[[], AsyncGenerator[bytes, None]], *, request_id: str) -> Flow:
    """Lines as they come. A stream that cannot go on ends with an `error` line and its problem."""

    async def source(start: StartBody, emit: Emit) -> None:
        async with aclosing(lines()) as flow:
            first = await anext(flow, b"")  # an error before the first line is a plain problem
            await start(200, _NDJSON_HEADERS)
            try:
                await emit(first)
                async for line in flow:
                    await emit(line)
            except (SandboxdError, TimeoutError) as error:
                body = problem_body(translate(error), request_id=request_id)
                await emit(to_json({"type": "error", "problem": body}) + b"\n")

    return Flow(source)
