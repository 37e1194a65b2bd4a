"""Arguments of tools that callers neither see nor give: taken out of schemas, put into calls. Pure.

What a lease has for them is known before the first call, so that nothing of it is a model's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxd.errors import SandboxdError
from sandboxd.mcp.messages import Message, params_of
from sandboxd.model.mcp_server import McpServer, filled
from sandboxd.wire.codes import ErrorCode

_MOST_TOOLS = 10_000


@dataclass(slots=True)
class Veil:
    """Over one server, for one lease. values: by name. tools: which of them each tool takes, as far
    as it was listed.
    """

    values: Mapping[str, str]
    tools: dict[str, frozenset[str]] = field(default_factory=dict)

    def strip(self, answer: Message) -> Message:
        """An answer to `tools/list` as the caller may see it."""
        result = answer.get("result")
        if not isinstance(result, dict) or not isinstance(result.get("tools"), list):
            return answer
        tools = [self._stripped(tool) for tool in result["tools"]]
        return {**answer, "result": {**result, "tools": tools}}

    def _stripped(self, tool: Any) -> Any:
        schema = tool.get("inputSchema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            return tool
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        hidden = frozenset(self.values.keys() & properties.keys())
        if len(self.tools) < _MOST_TOOLS:
            self.tools[str(tool.get("name"))] = hidden
        if not hidden:
            return tool
        kept = {name: value for name, value in properties.items() if name not in hidden}
        shown = {**schema, "properties": kept}
        if isinstance(schema.get("required"), list):
            shown["required"] = [name for name in schema["required"] if name not in hidden]
        return {**tool, "inputSchema": shown}

    def knows(self, call: Message) -> bool:
        """Whether the tool that is called was listed."""
        return str(params_of(call).get("name")) in self.tools

    def fill(self, call: Message) -> Message:
        """A call of a tool as the server is to get it: whatever its caller gave for these is
        replaced. A tool that nobody listed gets all of them.
        """
        params = params_of(call)
        arguments = params.get("arguments")
        given = arguments if isinstance(arguments, dict) else {}
        names = self.tools.get(str(params.get("name")), self.values.keys())
        ours = {name: self.values[name] for name in names}
        others = {name: value for name, value in given.items() if name not in self.values}
        return {**call, "params": {**params, "arguments": {**others, **ours}}}


def veil_of(server: McpServer, facts: Mapping[str, str | None]) -> Veil | None:
    """None for a server that hides nothing. Raises `bad_request` for what a lease has nothing for,
    or where there is no lease.
    """
    if not server.hidden:
        return None
    try:
        return Veil({name: filled(text, facts) for name, text in server.hidden})
    except KeyError as error:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST,
            f"the MCP server {server.name!r} hides an argument that needs {error.args[0]}: speak "
            "to it at the address of a sandbox that has it",
        ) from None
