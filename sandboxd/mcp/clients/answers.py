"""Plain HTTP answers that carry one JSON-RPC message."""

from __future__ import annotations

from pydantic_core import to_json
from starlette.types import Send

from sandboxd.mcp.messages import Message

_JSON = (b"content-type", b"application/json")


async def answer(send: Send, status: int, message: Message | None) -> None:
    """Answer with one message, or with nothing."""
    body = b"" if message is None else to_json(message)
    headers = [(b"content-length", str(len(body)).encode())]
    if message is not None:
        headers.append(_JSON)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
