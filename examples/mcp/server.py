"""Two small MCP servers on standard streams, in plain Python: `python3 server.py notes|glossary`.

`notes` remembers what it is told, so each rollout needs one of its own. `glossary` remembers
nothing, so one serves all rollouts. Write yours with a package made for it; these need none, so
that they run in any image that has Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

NOTES: list[str] = []
WORDS = {"lease": "the right to use a sandbox for a time", "box": "one isolated environment"}


def take_note(text: str, user: str) -> str:
    """Remember something."""
    NOTES.append(f"{user}: {text}")
    return f"{len(NOTES)} notes"


def read_notes() -> str:
    """All that was remembered."""
    return "\n".join(NOTES)


def explain(word: str) -> str:
    """What a word means."""
    return WORDS.get(word, "no such word")


Tools = dict[str, tuple[Callable[..., str], list[str]]]

SERVERS: dict[str, Tools] = {
    "notes": {"take_note": (take_note, ["text", "user"]), "read_notes": (read_notes, [])},
    "glossary": {"explain": (explain, ["word"])},
}
TOOLS = SERVERS[sys.argv[1]]


def schema_of(names: list[str]) -> dict[str, Any]:
    """What a tool takes: texts, all of them."""
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": names}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": sys.argv[1], "version": "1"},
            }
        case "tools/list":
            tools = [
                {"name": name, "description": act.__doc__, "inputSchema": schema_of(names)}
                for name, (act, names) in TOOLS.items()
            ]
            return {"tools": tools}
        case "tools/call":
            act, _ = TOOLS[params["name"]]
            text = act(**params.get("arguments", {}))
            return {"content": [{"type": "text", "text": text}]}
        case _:
            return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = result_of(asked["method"], asked.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
