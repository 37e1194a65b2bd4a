"""Ports in the OpenAPI document: no route of the framework's knows of them."""

from __future__ import annotations

from typing import Any

_PATH = "/v1/sandboxes/{sandbox_id}/ports/{port}/{path}"
_METHODS = ("get", "put", "post", "patch", "delete")
_DESCRIPTION = (
    "Any method, and WebSockets: passed on to `127.0.0.1:port` inside as they flow, both ways. "
    "`docs/ports.md` has what is changed on the way, and how failures are told."
)
_PARAMETERS: list[dict[str, Any]] = [
    {"name": "sandbox_id", "in": "path", "required": True, "schema": {"type": "string"}},
    {
        "name": "port",
        "in": "path",
        "required": True,
        "schema": {"type": "integer", "minimum": 1, "maximum": 65535},
    },
    {
        "name": "path",
        "in": "path",
        "required": True,
        "description": "The rest of the path, slashes and all; the query goes with it.",
        "schema": {"type": "string"},
    },
]


def with_ports(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with the door to ports."""
    document["paths"][_PATH] = {method: _operation(method) for method in _METHODS}
    return document


def _operation(method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": ["ports"],
        "summary": "Pass On",
        "description": _DESCRIPTION,
        "operationId": f"pass_on_{method}",
        "parameters": _PARAMETERS,
        "responses": {"200": {"description": "What the server inside answers, whatever it is."}},
    }
    if method != "get":
        operation["requestBody"] = {"content": {"*/*": {"schema": {}}}}
    return operation
