"""Arguments that callers neither see nor give."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.daemon import RunningDaemon
from tests.support.mcp import (
    ERAS,
    HEADERS,
    answer_in,
    call,
    client,
    counter,
    http_counter,
    leased,
    request,
)

pytestmark = pytest.mark.anyio

HIDDEN = {"user": "{label.user}/{sandbox_id}"}


def kept(tools: list[Any], name: str) -> tuple[list[str], list[str]]:
    """The properties and the required ones of a tool."""
    schema = next(tool["inputSchema"] for tool in tools if tool["name"] == name)
    return sorted(schema["properties"]), schema["required"]


@pytest.mark.parametrize("mode", ERAS)
async def test_schema_lacks_it_and_the_call_has_it(daemon: RunningDaemon, mode: str) -> None:
    servers = {"counter": counter(hidden=HIDDEN)}
    async with (
        leased(daemon.url, servers, labels={"user": "u-7"}) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode) as speaker,
    ):
        tools = [tool.model_dump(by_alias=True) for tool in (await speaker.list_tools()).tools]
        assert kept(tools, "whoami") == (["note"], ["note"])
        told = await speaker.call_tool("whoami", {"note": "n", "user": "somebody else"})
        heard = json.loads(told.content[0].text)  # type: ignore[union-attr]
    assert heard == {"note": "n", "user": f"u-7/{sandbox.rpartition('/')[2]}"}


async def test_tool_without_it_is_left_alone_though_nobody_listed_any(
    daemon: RunningDaemon,
) -> None:
    servers = {"counter": counter(hidden={"user": "u"})}
    async with leased(daemon.url, servers) as sandbox, httpx.AsyncClient(timeout=30) as http:
        address = f"{sandbox}/mcp/counter"
        echoed = await http.post(address, json=call("echo", text="x"), headers=HEADERS)
        assert answer_in(echoed)["result"]["content"][0]["text"] == "x"
        told = await http.post(address, json=call("whoami"), headers=HEADERS)
        assert json.loads(answer_in(told)["result"]["content"][0]["text"]) == {"user": "u"}


async def test_server_on_a_port_has_them_hidden_too(daemon: RunningDaemon) -> None:
    servers = {"web": http_counter(hidden={"user": "u-{run_id}"})}
    async with (
        leased(daemon.url, servers, run_id="r1") as sandbox,
        httpx.AsyncClient(timeout=30) as http,
    ):
        address = f"{sandbox}/mcp/web"
        listed = await http.post(address, json=request("tools/list"), headers=HEADERS)
        assert kept(answer_in(listed)["result"]["tools"], "given") == (["by"], [])
        told = await http.post(address, json=call("given", by=1, user="x"), headers=HEADERS)
        heard = json.loads(answer_in(told)["result"]["content"][0]["text"])
    assert heard == {"by": 1, "user": "u-r1"}
