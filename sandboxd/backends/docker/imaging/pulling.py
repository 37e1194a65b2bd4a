"""One pull: the engine's stream of progress, to its end or its error."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio

from sandboxd.backends.docker.engine import Engine, unavailable
from sandboxd.backends.docker.imaging.dialing import dial
from sandboxd.backends.parts.pull_words import Cause
from sandboxd.model.image import ImageName
from sandboxd.wire.http1 import AsyncConnection, AsyncResponse, ConnectionLost, Headers

T = TypeVar("T")

_MAX_WORDS = 1000
_MAX_LAYERS = 1000
_MAX_LINE_BYTES = 1 << 20
_OK = 200


class PullFailed(Exception):
    """It ended without the image. cause: None where the words must tell."""

    def __init__(self, words: str, cause: Cause | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.cause = cause


@dataclass(slots=True)
class Progress:
    """How far a pull is, in bytes by layer."""

    status: str = ""
    done_bytes: dict[str, int] = field(default_factory=dict)
    all_bytes: dict[str, int] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Note one event of the engine."""
        self.status = str(event.get("status", ""))[:_MAX_WORDS]
        layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
        known = layer in self.all_bytes or len(self.all_bytes) < _MAX_LAYERS
        if self.status == "Downloading" and known and detail.get("total"):
            self.all_bytes[layer] = int(detail["total"])
            self.done_bytes[layer] = int(detail.get("current", 0))

    def __str__(self) -> str:
        done, whole = sum(self.done_bytes.values()), sum(self.all_bytes.values())
        return f"{self.status or 'asking'}, {done >> 20} of {whole >> 20} MiB"


class Pull:
    """One pull. auth: the encoded header, or empty. stall_s: between two events, at most."""

    def __init__(self, engine: Engine, name: ImageName, *, auth: str, stall_s: float) -> None:
        self.progress = Progress()
        self._engine = engine
        self._name = name
        self._auth = auth
        self._stall_s = stall_s

    async def run(self) -> None:
        """Pull, to the end. Cancelled: the engine ends a pull that nobody reads.

        Raises PullFailed, and `backend_unavailable` where the engine goes away.
        """
        connection = await dial(self._engine)
        try:
            async with aclosing(self._events(await self._begin(connection))) as events:
                async for event in events:
                    if words := _error(event):
                        raise PullFailed(words)
                    self.progress.take(event)
        except ConnectionLost as error:
            raise unavailable(error) from error
        finally:
            await connection.aclose()

    async def _begin(self, connection: AsyncConnection) -> AsyncResponse:
        name = self._name
        query = urlencode({"fromImage": name.repository, "tag": name.digest or name.tag})
        headers: Headers = [(b"host", b"engine"), (b"connection", b"close")]
        if self._auth:
            headers.append((b"x-registry-auth", self._auth.encode()))
        target = f"/v{self._engine.api.api_version}/images/create?{query}"
        response = await self._patiently(connection.request("POST", target, headers))
        if response.status != _OK:
            body = await self._patiently(response.read(limit=_MAX_LINE_BYTES))
            raise PullFailed(_message(body))
        return response

    async def _events(self, response: AsyncResponse) -> AsyncGenerator[dict[str, Any]]:
        """What the engine says, an object a line; what is none of that is passed over."""
        rest = b""
        while piece := await self._patiently(response.next_chunk()):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[:_MAX_LINE_BYTES]
            for line in lines:
                if (event := _object(line)) is not None:
                    yield event
        if (event := _object(rest)) is not None:
            yield event

    async def _patiently(self, step: Awaitable[T]) -> T:
        """One step, unless it shows no progress for too long."""
        try:
            with anyio.fail_after(self._stall_s):
                return await step
        except TimeoutError as error:
            words = f"nothing new for {self._stall_s:g} s: {self.progress}"
            raise PullFailed(words, Cause.STALLED) from error


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _error(event: dict[str, Any]) -> str:
    detail = event.get("errorDetail")
    words = detail.get("message") if isinstance(detail, dict) else None
    return str(words or event.get("error") or "")[:_MAX_WORDS].strip()


def _message(body: bytes) -> str:
    event = _object(body)
    words = body.decode(errors="replace") if event is None else str(event.get("message", ""))
    return words[:_MAX_WORDS].strip() or "the engine gave no reason"
