"""JSON-RPC messages as they pass: plain objects, so that nothing unknown is lost. Pure."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

Message = dict[str, Any]
RequestId = int | str

LARGEST_BYTES = 16 << 20

# Of the protocol: those that begin with `initialize`, oldest first, and the one without.
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_HANDSHAKE = HANDSHAKES[-1]
SESSIONLESS = "2026-07-28"

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_GONE = -32003  # of the band that is left to implementations: `data` says what is the matter


def is_request(message: Message) -> bool:
    """Whether an answer is owed."""
    return "method" in message and "id" in message


def is_notification(message: Message) -> bool:
    """Whether nobody is to answer."""
    return "method" in message and "id" not in message


def params_of(message: Message) -> dict[str, Any]:
    """Its parameters; empty for none."""
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def read_message(data: bytes) -> Message | None:
    """A message from its JSON; None for what is none."""
    try:
        said = from_json(data)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("jsonrpc") != "2.0":
        return None
    return said if "method" in said or "id" in said else None


def write_message(message: Message) -> bytes:
    """One line, in ASCII: no text of anybody's can end it early."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def notification(method: str, params: dict[str, Any]) -> Message:
    """A message that nobody answers."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result_of(request_id: RequestId, result: dict[str, Any]) -> Message:
    """The answer to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_of(request_id: RequestId | None, code: int, text: str, data: Any = None) -> Message:
    """The refusal of a request."""
    error: dict[str, Any] = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def refusal_of(request_id: RequestId | None, error: SandboxdError) -> Message:
    """One of our errors as clients of MCP hear it: `data` has what a problem has."""
    data = {
        "code": error.code,
        "detail": error.detail,
        "fault": error.fault,
        "retry_safe": error.retry_safe,
        "mask": error.mask,
        "retry_after_s": error.retry_after_s,
        "sandbox_id": error.sandbox_id,
        "details": error.details,
    }
    return error_of(request_id, SERVER_GONE, f"{error.code}: {error.detail}", data)


def crowded(what: str) -> SandboxdError:
    """Too many at once."""
    return SandboxdError(ErrorCode.CAPACITY, f"too many {what} at once", retry_after_s=1)
