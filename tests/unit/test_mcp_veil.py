"""What is hidden of a tool, and what is filled in."""

from __future__ import annotations

import pytest

from sandboxd.errors import SandboxdError
from sandboxd.mcp.hidden import Veil, veil_of
from sandboxd.model.mcp_server import McpServer, flaw


def listed(**properties: object) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "t", "inputSchema": schema}]}}


def called(**arguments: object) -> dict[str, object]:
    return {"method": "tools/call", "params": {"name": "t", "arguments": arguments}}


def test_only_what_a_tool_takes_is_taken_out_and_filled_in() -> None:
    veil = Veil({"user": "u", "other": "o"})
    (tool,) = veil.strip(listed(user={}, text={}))["result"]["tools"]
    assert (list(tool["inputSchema"]["properties"]), tool["inputSchema"]["required"]) == (
        ["text"],
        ["text"],
    )
    filled = veil.fill(called(text="x", user="mine", other="mine"))
    assert filled["params"]["arguments"] == {"text": "x", "user": "u"}


def test_answers_that_are_no_lists_pass_as_they_are() -> None:
    veil = Veil({"user": "u"})
    answers: list[dict[str, object]] = [
        {"error": {}},
        {"result": None},
        {"result": {"tools": [5, {"name": "x"}]}},
    ]
    for odd in answers:
        assert veil.strip(odd) == odd


def test_what_a_lease_has_nothing_for_is_refused_by_name() -> None:
    server = McpServer(name="s", command=("x",), hidden=(("user", "{label.user}"),))
    veil = veil_of(server, {"label.user": "ada"})
    assert veil is not None
    assert veil.values == {"user": "ada"}
    with pytest.raises(SandboxdError, match=r"label\.user"):
        veil_of(server, {})
    assert veil_of(McpServer(name="s", command=("x",)), {}) is None


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (McpServer(name="s"), "give a `command`"),
        (McpServer(name="s", port=80, prestart=True), "`prestart` needs"),
        (McpServer(name="s", port=80, path="mcp"), "begins with a slash"),
        (McpServer(name="s", scope="shared", port=80), "named here alone"),
        (McpServer(name="s", command=("x",), hidden=(("a", "{b}"),)), "there is no {b}"),
    ],
)
def test_a_wrong_declaration_says_its_mend(server: McpServer, words: str) -> None:
    assert words in str(flaw(server))
