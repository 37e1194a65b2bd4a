"""The daemon's own MCP server, asked without a session and without the `mcp` package."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._core.calls import Call, encode, path_of

_ACCEPT = "application/json, text/event-stream"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_SILENCE_S = 60.0  # the daemon says that it lives every 15 s


async def ask_own_server(api: AsyncApi, request: Mapping[str, Any]) -> dict[str, Any]:
    """Raises the typed error where the daemon itself refuses or fails. Sent once."""
    call = Call(
        method="POST",
        path=path_of("mcp", "sandboxd"),
        body=encode(dict(request)),
        accept=_ACCEPT,
        silence_s=_SILENCE_S,
        headers=_headers(request),
    )
    body, _ = await api.read(call)
    return _last_message(body)


def _headers(request: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What a request of the era without sessions says in its head as well."""
    params = request.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(_VERSION_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str) or not isinstance(params, dict):
        return ()
    headers = [("mcp-protocol-version", version), ("mcp-method", str(request.get("method")))]
    if request.get("method") == "tools/call" and isinstance(name := params.get("name"), str):
        packed = base64.b64encode(name.encode()).decode()
        headers.append(("mcp-name", f"=?base64?{packed}?="))
    return tuple(headers)


def _last_message(body: bytes) -> dict[str, Any]:
    """Of a plain answer, or of a stream of events."""
    text = body.decode()
    if not text.startswith("{"):
        lines = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
        text = [line for line in lines if line][-1]
    message: dict[str, Any] = json.loads(text)
    return message
