"""Hidden arguments of a server that speaks HTTP: bodies are looked into where tools are listed or
called, and pass as they flow everywhere else.
"""

from __future__ import annotations

import json

from pydantic_core import to_json
from starlette.types import Message, Scope, Send

from sandboxd.api.mcp.bodies import Whole, read_whole
from sandboxd.errors import SandboxdError
from sandboxd.mcp.hidden import Veil
from sandboxd.mcp.messages import LARGEST_BYTES
from sandboxd.wire.codes import ErrorCode, Fault


async def draw(veil: Veil, scope: Scope, whole: Whole, send: Send) -> tuple[Scope, Send]:
    """One request behind the veil: what the server is to get, and what its caller is to see."""
    if scope["method"] != "POST":
        return scope, send
    body = await read_whole(whole)
    method = body.get("method") if isinstance(body, dict) else None
    if method == "tools/call":
        filled = to_json(veil.fill(body))
        whole.replace(filled)
        return {**scope, "headers": _with_length(scope, len(filled))}, send
    if method == "tools/list":
        # What comes packed could not be read.
        headers = [each for each in scope["headers"] if each[0] != b"accept-encoding"]
        return {**scope, "headers": headers}, _Stripping(veil, send)
    return scope, send


def _with_length(scope: Scope, size: int) -> list[tuple[bytes, bytes]]:
    gone = {b"content-length", b"transfer-encoding"}
    headers = [each for each in scope["headers"] if each[0] not in gone]
    return [*headers, (b"content-length", str(size).encode())]


class _Stripping:
    """A `send` for an answer to `tools/list`, which is told whole."""

    def __init__(self, veil: Veil, send: Send) -> None:
        self._veil = veil
        self._send = send
        self._start: Message = {}
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if len(self._body) > LARGEST_BYTES:
            raise SandboxdError(
                ErrorCode.TOO_LARGE, "the list of tools is too long", fault=Fault.TASK, mask=True
            )
        if message.get("more_body", False):
            return
        body = self._stripped(bytes(self._body))
        headers = [each for each in self._start["headers"] if each[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _stripped(self, body: bytes) -> bytes:
        kind = dict(self._start["headers"]).get(b"content-type", b"")
        if not kind.startswith(b"text/event-stream"):
            return self._stripped_json(body)
        lines = body.split(b"\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data:"):
                lines[number] = b"data: " + self._stripped_json(line[5:].strip())
        return b"\n".join(lines)

    def _stripped_json(self, data: bytes) -> bytes:
        try:
            said = json.loads(data)
        except ValueError:
            return data
        return to_json(self._veil.strip(said)) if isinstance(said, dict) else data
