"""Calls to the daemon: answers parsed, failures typed, passing ones tried again.

Knows no sandbox.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from sandboxd.wire.http1 import AsyncResponse, ConnectionLost, Headers
from sandboxd.wire.websocket import accept_of, new_key
from sandboxd_client._async.socket import AsyncSocket
from sandboxd_client._async.transport import AsyncBody, AsyncExchange, AsyncTransport
from sandboxd_client._core.calls import Call
from sandboxd_client._core.retries import Patience
from sandboxd_client._core.settings import Address
from sandboxd_client._runtime import aio as runtime
from sandboxd_client.errors import ApiUnreachable, Internal, SandboxdError, error_from_problem

T = TypeVar("T")

PATIENCE_S = (
    30.0  # a restart of the daemon takes a few seconds; a wrong address should not take a minute
)

_MOST_JSON_BYTES = 256 << 20  # both streams of a command at a generous output limit
_MOST_PROBLEM_BYTES = 1 << 20
_MOST_BYTES = 1 << 40  # as much as memory holds: the caller asked for all of it


class AsyncApi:
    """One daemon, one key."""

    def __init__(
        self, address: Address, *, key: str | None, connections: int, patience_s: float
    ) -> None:
        self.patience_s = patience_s
        self._transport = AsyncTransport(address, headers=_headers(key), limit=connections)
        scheme = "https" if address.tls else "http"
        self.url = f"{scheme}://{address.authority}{address.prefix}"
        self.authorization = {"Authorization": f"Bearer {key}"} if key else {}

    async def json(self, call: Call, *, deadline: float | None = None) -> dict[str, Any]:
        """The JSON object that answers a call; an empty one for an answer without a body.

        deadline: no try begins after it (on the runtime's clock). Raises the typed error,
        ApiUnreachable among them.
        """

        async def once() -> dict[str, Any]:
            status, headers, body = await self._transport.ask(call, limit=_MOST_JSON_BYTES)
            if status >= 400:
                raise _error_of(status, headers, body)
            return _object(body)

        return await self.trying(call, once, deadline=deadline)

    async def open(self, call: Call, *, body: AsyncBody | None = None) -> AsyncExchange:
        """The answer to a call, its body yet to be read; close it.

        body: makes the pieces of the request's body, once for each try. Raises as `json` does.
        """

        async def once() -> AsyncExchange:
            return await self._begin(call, body)

        return await self.trying(call, once)

    async def read(self, call: Call) -> tuple[bytes, AsyncResponse]:
        """A whole body, and the head it came with. What is cut is read again from its start."""

        async def once() -> tuple[bytes, AsyncResponse]:
            exchange = await self._begin(call, None)
            try:
                return await exchange.response.read(limit=_MOST_BYTES), exchange.response
            finally:
                await exchange.aclose()

        return await self.trying(call, once)

    async def send(self, call: Call, *, body: AsyncBody) -> dict[str, Any]:
        """Like `json`, for a body in pieces."""

        async def once() -> dict[str, Any]:
            exchange = await self._begin(call, body)
            try:
                return _object(await exchange.response.read(limit=_MOST_JSON_BYTES))
            finally:
                await exchange.aclose()

        return await self.trying(call, once)

    async def socket(self, call: Call) -> AsyncSocket:
        """A WebSocket; close it. One try. Raises ConnectionLost and typed errors."""
        key = new_key()
        wanted: Headers = [
            (b"connection", b"Upgrade"),
            (b"upgrade", b"websocket"),
            (b"sec-websocket-version", b"13"),
            (b"sec-websocket-key", key),
        ]
        held, response = await self._transport.upgrade(call, wanted)
        try:
            if response.status >= 400:
                told = await response.read(limit=_MOST_PROBLEM_BYTES)
                raise _error_of(response.status, response.headers, told)
            if response.header(b"sec-websocket-accept") != accept_of(key):
                raise ApiUnreachable(
                    "something between us and the daemon knows no WebSockets",
                    retry_safe=False,
                    status=response.status,
                )
        except BaseException:
            await held.connection.aclose()
            raise
        return AsyncSocket(*held.connection.detach())

    async def aclose(self) -> None:
        """Close the connections at rest."""
        await self._transport.aclose()

    async def trying(
        self, call: Call, once: Callable[[], Awaitable[T]], *, deadline: float | None = None
    ) -> T:
        """Do `once()` until it works, while it fails with what passes and may be tried again.

        call: what it sends. deadline: no try begins after it. Goes on for `patience_s` from the
        first failure on: a line that is cut late in a long wait leaves as much as any other.
        Raises the typed error.
        """
        patience: Patience | None = None
        while True:
            try:
                return await once()
            except ConnectionLost as lost:
                error: SandboxdError = unreachable(lost)
                error.__cause__ = lost
            except SandboxdError as told:
                error = told
            if patience is None:
                until = runtime.now() + self.patience_s
                patience = Patience(deadline=until if deadline is None else min(until, deadline))
            pause = patience.pause(error, safe=call.safe, now=runtime.now())
            if pause is None:
                raise error
            await runtime.sleep(pause)

    async def _begin(self, call: Call, body: AsyncBody | None) -> AsyncExchange:
        """One try: an answer that is no error. Raises ConnectionLost, typed errors."""
        exchange = await self._transport.send(call, body)
        response = exchange.response
        if response.status < 400:
            return exchange
        try:
            told = await response.read(limit=_MOST_PROBLEM_BYTES)
        finally:
            await exchange.aclose()
        raise _error_of(response.status, response.headers, told)


def unreachable(lost: ConnectionLost) -> ApiUnreachable:
    """The public face of a lost connection."""
    if not lost.sent:
        return ApiUnreachable(str(lost), retry_safe=True)
    return ApiUnreachable(f"the answer was lost: {lost}", retry_safe=False)


def _headers(key: str | None) -> Headers:
    agent = f"sandboxd-client python/{platform.python_version()}"
    headers: Headers = [(b"user-agent", agent.encode())]
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return headers


def _error_of(status: int, headers: Headers, body: bytes) -> SandboxdError:
    if _header(headers, b"content-type").startswith("application/problem+json"):
        problem = _object(body)
        problem.setdefault("status", status)
        if problem.get("retry_after_s") is None and (after := _header(headers, b"retry-after")):
            problem["retry_after_s"] = float(after) if after.isdigit() else None
        return error_from_problem(problem)
    # Not the daemon's own words: a proxy between us, or another server altogether.
    words = body[:200].decode("utf-8", "replace").strip()
    detail = f"something between us and the daemon answered {status}: {words}"
    return ApiUnreachable(detail, retry_safe=False, status=status)


def _header(headers: Headers, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        told = json.loads(body)
    except ValueError as error:
        raise Internal("the daemon's answer is no JSON") from error
    if not isinstance(told, Mapping):
        raise Internal("the daemon's answer is no JSON object")
    return dict(told)
