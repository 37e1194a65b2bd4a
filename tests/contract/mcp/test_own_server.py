"""The daemon as an MCP server: by HTTP, and on standard streams."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.contract.columns import below_of, column_of
from tests.support.daemon import ROOT, RunningDaemon, run_daemon
from tests.support.mcp import ERAS, HEADERS, answer_in, call

pytestmark = pytest.mark.anyio

_TABLES = """
[server]
api_keys = [
  {{name = "alice", key = "alice-secret-key", quota = {{leases = 2}}}},
  {{name = "bob", key = "bob-secret-key"}},
]

[templates.python]
image = {image}
resources = {{memory_mb = 512, pids = 256}}
pool = {{ready = 1, max = 8}}
"""


@pytest.fixture(scope="module")
def daemon(
    backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    """A daemon with two keys."""
    column = column_of(below_of(backend, request))
    text = column.table + _TABLES.format(image=json.dumps(column.image))
    with run_daemon(tmp_path_factory.mktemp("own"), backend=backend, config=text) as running:
        yield running


def caller(daemon: RunningDaemon, name: str) -> httpx.AsyncClient:
    """Somebody with a key."""
    headers = {**HEADERS, "authorization": f"Bearer {name}-secret-key"}
    return httpx.AsyncClient(base_url=daemon.url, headers=headers, timeout=60)


async def use(http: httpx.AsyncClient, tool: str, **arguments: Any) -> dict[str, Any]:
    """The result of a tool."""
    answer = await http.post("/v1/mcp/sandboxd", json=call(tool, **arguments))
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer_in(answer)["result"]
    return result


async def test_tools_lease_run_read_write_and_release(daemon: RunningDaemon) -> None:
    async with caller(daemon, "alice") as http:
        place = (await use(http, "lease_sandbox", env={"A": "1"}))["structuredContent"]
        of = {"sandbox_id": place["sandbox_id"]}
        ran = await use(http, "run_command", **of, command="echo $A; exit 3")
        assert ran["content"][0]["text"] == "1\n[exited 3]"
        assert ran["structuredContent"]["exit_code"] == 3
        await use(http, "write_file", **of, path="d/a.txt", text="hällo")
        assert (await use(http, "read_file", **of, path="d/a.txt"))["content"][0]["text"] == "hällo"
        listed = await use(http, "list_files", **of, path="d")
        assert listed["content"][0]["text"] == "a.txt"
        assert (await use(http, "run_cell", **of, code="x = 41"))["content"][0]["text"] == ""
        assert (await use(http, "run_cell", **of, code="x + 1"))["content"][0]["text"] == "42"
        assert place["sandbox_id"] in str(await use(http, "list_sandboxes"))
        assert (await use(http, "release_sandbox", **of))["isError"] is False
        gone = await use(http, "run_command", **of, command="true")
        assert (gone["isError"], gone["structuredContent"]["code"]) == (True, "lease_ended")


async def test_tools_are_bound_to_the_callers_key_and_quota(daemon: RunningDaemon) -> None:
    async with caller(daemon, "alice") as alice, caller(daemon, "bob") as bob:
        leases = [(await use(alice, "lease_sandbox"))["structuredContent"] for _ in range(2)]
        third = await use(alice, "lease_sandbox", wait_timeout_s=0)
        assert third["structuredContent"]["code"] == "quota_exceeded"
        of = {"sandbox_id": leases[0]["sandbox_id"]}
        foreign = await use(bob, "run_command", **of, command="true")
        assert foreign["structuredContent"]["code"] == "not_found"
        assert (await use(bob, "list_sandboxes"))["content"][0]["text"] == "none"
        for lease in leases:
            await use(alice, "release_sandbox", sandbox_id=lease["sandbox_id"])
        async with httpx.AsyncClient(base_url=daemon.url) as nobody:
            answer = await nobody.post("/v1/mcp/sandboxd", json=call("list_sandboxes"))
        assert answer.status_code == 401


async def test_wrong_arguments_name_the_mend(daemon: RunningDaemon) -> None:
    async with caller(daemon, "bob") as http:
        wrong = await use(http, "run_command", sandbox_id="x", comand="ls")
    assert wrong["isError"] is True
    assert "comand" in wrong["content"][0]["text"]


@pytest.mark.parametrize("mode", ERAS)
async def test_sandboxd_mcp_serves_a_client_on_standard_streams(
    daemon: RunningDaemon, mode: str
) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sandboxd", "mcp"],
        env={
            "SANDBOXD_API_URL": daemon.url,
            "SANDBOXD_API_KEY": "bob-secret-key",
            "PYTHONPATH": f"{ROOT}:{Path(ROOT) / 'client'}",
        },
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        if mode == "legacy":
            await session.initialize()
        else:
            await session.discover()
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert {"lease_sandbox", "run_command", "run_cell"} <= names
        result = await session.call_tool("list_sandboxes", {})
        assert result.content[0].text == "none"  # type: ignore[union-attr]
