"""The document as a whole: what is added to what the routes say."""

from __future__ import annotations

from typing import Any

from sandboxd.api.shapes.commands import ExecEvent
from sandboxd.api.shapes.parts import Problem, Responses
from sandboxd.api.shapes.runs import Event

EVENTS: Responses = {
    200: {
        "description": "Lines of JSON, each an ExecEvent.",
        "content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/ExecEvent"}}},
    }
}


def with_problems(document: dict[str, Any]) -> dict[str, Any]:
    """The document with every failure told as what it is, a problem."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for model in (Problem, ExecEvent, Event):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    failure = {
        "description": "A problem, with a code of the closed list.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = failure
    return document
