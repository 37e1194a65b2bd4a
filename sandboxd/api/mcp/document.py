"""MCP servers in the OpenAPI document: no route of the framework's knows of them."""

from __future__ import annotations

from typing import Any

_PATHS = {"/v1/sandboxes/{sandbox_id}/mcp/{name}": "", "/v1/mcp/{name}": "_shared"}
_METHODS = ("get", "post", "delete")
_DESCRIPTION = (
    "MCP over streamable HTTP, with `initialize` and a session or without either. Which server is "
    "meant the address says alone. `docs/mcp.md` has how failures are told."
)


def with_mcp(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with the doors to MCP servers."""
    for path, suffix in _PATHS.items():
        names = [name.split("}")[0] for name in path.split("{")[1:]]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
        document["paths"][path] = {
            method: _operation(method, parameters, suffix) for method in _METHODS
        }
    return document


def _operation(method: str, parameters: list[dict[str, Any]], suffix: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": ["mcp"],
        "summary": "Speak Mcp",
        "description": _DESCRIPTION,
        "operationId": f"speak_mcp_{method}{suffix}",
        "parameters": parameters,
        "responses": {"200": {"description": "What the server answers, whatever it is."}},
    }
    if method == "post":
        operation["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    return operation
