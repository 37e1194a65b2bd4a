"""MCP servers as the SDK and the command line have them."""

from __future__ import annotations

import json
import subprocess
import sys

import mcp_types
import pytest

from sandboxd_client import AsyncSandboxd, Sandboxd
from tests.support.daemon import ROOT, RunningDaemon
from tests.support.mcp import COUNTER, client, counter, text_of

pytestmark = pytest.mark.anyio

OPTIONS = {"files": {"counter.py": COUNTER}, "mcp_servers": {"counter": counter()}}


async def test_session_of_a_sandbox_is_open_when_it_is_entered(daemon: RunningDaemon) -> None:
    async with (
        AsyncSandboxd(daemon.url) as sandboxd,
        sandboxd.lease("python", **OPTIONS) as sandbox,  # type: ignore[arg-type]
        sandbox.mcp("counter") as session,
    ):
        assert "add" in {tool.name for tool in (await session.list_tools()).tools}
        assert (await session.call_tool("add", {"by": 2})).content[0].text == "2"
        (server,) = await sandbox.mcp_servers()
        assert (server.name, server.state, server.restarts) == ("counter", "running", 0)
        assert server.url == sandbox.mcp_url("counter")


async def test_session_takes_the_options_of_a_client(daemon: RunningDaemon) -> None:
    async def sample(*_: object) -> mcp_types.CreateMessageResult:
        words = mcp_types.TextContent(type="text", text="said")
        return mcp_types.CreateMessageResult(role="assistant", content=words, model="m")

    wanted = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    async with (
        AsyncSandboxd(daemon.url) as sandboxd,
        sandboxd.lease("python", **OPTIONS) as sandbox,  # type: ignore[arg-type]
        sandbox.mcp("counter", sampling_callback=sample) as session,
    ):
        assert "said" in (await session.call_tool("ask", wanted)).content[0].text


async def test_address_with_a_token_needs_no_key(daemon: RunningDaemon) -> None:
    async with (
        AsyncSandboxd(daemon.url) as sandboxd,
        sandboxd.lease("python", **OPTIONS) as sandbox,  # type: ignore[arg-type]
    ):
        url = sandbox.mcp_url("counter", token=await sandbox.token())
        assert "/s/" in url
        async with client(url, mode="legacy") as speaker:
            assert await text_of(speaker, "add", by=1) == "1"


def test_the_twin_waits_for_each_call(daemon: RunningDaemon) -> None:
    with (
        Sandboxd(daemon.url) as sandboxd,
        sandboxd.lease("python", **OPTIONS) as sandbox,  # type: ignore[arg-type]
        sandbox.mcp("counter") as session,
    ):
        assert session.call_tool("add", {"by": 3}).content[0].text == "3"
        assert session.server_info.name == "counter"


def test_command_line_lists_them(daemon: RunningDaemon) -> None:
    with (
        Sandboxd(daemon.url) as sandboxd,
        sandboxd.lease("python", **OPTIONS) as sandbox,  # type: ignore[arg-type]
    ):
        environ = {"SANDBOXD_API_URL": daemon.url, "PYTHONPATH": f"{ROOT}:{ROOT}/client"}
        listed = [
            subprocess.run(
                [sys.executable, "-m", "sandboxd", "mcp-servers", *words],
                env=environ, capture_output=True, text=True, check=True, timeout=20,
            ).stdout
            for words in ([sandbox.id], [sandbox.id, "-o", "json"], ["-o", "json"])
        ]  # fmt: skip
    assert "counter" in listed[0] and "stopped" in listed[0]
    assert json.loads(listed[1])["mcp_servers"][0]["sandbox_id"] == sandbox.id
    assert json.loads(listed[2])["mcp_servers"][0]["name"] == "sandboxd"
