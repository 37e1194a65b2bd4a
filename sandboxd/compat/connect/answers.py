"""Requests read and answered as ConnectRPC has them: alone, or as a stream with its end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request
from starlette.responses import Response

from sandboxd.api.streams import Emit, Flow, StartBody, until_stopped
from sandboxd.compat.connect.envelopes import (
    MAX_MESSAGE_BYTES,
    STREAM_TYPE,
    UNARY_TYPE,
    Envelopes,
    last,
)
from sandboxd.compat.connect.faults import Broken, fault_of
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost

T = TypeVar("T")

KNOWN = (SandboxdError, GuestLost, TimeoutError, ValueError, Broken)
_STREAM = {"Content-Type": STREAM_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def timeout_s(request: Request) -> float | None:
    """How long the caller gives it; None for ever. Raises ValueError."""
    text = request.headers.get("connect-timeout-ms", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**10):
        msg = "Connect-Timeout-Ms: give milliseconds, in at most ten digits"
        raise ValueError(msg)
    return int(text) / 1000


async def whole(request: Request, read: Callable[[bytes], T], *, enveloped: bool = False) -> T:
    """The one message of a request. Raises ValueError, and what `read` raises."""
    wanted = STREAM_TYPE if enveloped else UNARY_TYPE
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != wanted:
        msg = f"Content-Type: this method takes {wanted}"
        raise ValueError(msg)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES + 1024:
            msg = f"a message is limited to {MAX_MESSAGE_BYTES} bytes"
            raise ValueError(msg)
    if not enveloped:
        return read(bytes(body))
    found = list(Envelopes().feed(bytes(body)))
    if len(found) != 1:
        msg = "send one message in one envelope"
        raise ValueError(msg)
    return read(found[0])


async def unary(request: Request, call: Callable[[], Awaitable[bytes]]) -> Response:
    """The message that a call makes, or its fault with the status of an answer alone."""
    try:
        return Response(await call(), media_type=UNARY_TYPE)
    except KNOWN as error:
        return _refused(error)


async def reply(request: Request, call: Callable[[], Awaitable[bytes]]) -> Response:
    """The same where the client streams: the answer is a stream, whole, with its end."""
    try:
        return Response(await call(), media_type=STREAM_TYPE)
    except KNOWN as error:
        return Response(last(fault_of(error)), media_type=STREAM_TYPE)


async def stream(
    request: Request,
    read: Callable[[bytes], T],
    envelopes: Callable[[T], AsyncGenerator[bytes, None]],
) -> Response:
    """Envelopes for the one message of a request, as they come, and the end: with the fault that
    ended them, if one did. A stream that is open when the daemon stops ends without a result, and
    is come back to.
    """
    try:
        asked = await whole(request, read, enveloped=True)  # before anybody waits for a hang-up
    except KNOWN as error:
        return Response(last(fault_of(error)), media_type=STREAM_TYPE)

    async def source(start: StartBody, emit: Emit) -> None:
        await start(200, _STREAM)

        async def pour() -> None:
            async with aclosing(envelopes(asked)) as flow:
                async for each in flow:
                    await emit(each)

        try:
            await until_stopped(request, pour)
        except KNOWN as error:
            await emit(last(fault_of(error)))
        else:
            await emit(last())

    return Flow(source)


def _refused(error: Exception) -> Response:
    fault = fault_of(error)
    return Response(
        json.dumps(fault.told()), status_code=fault.status, media_type="application/json"
    )
