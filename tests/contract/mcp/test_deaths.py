"""How servers end, what their callers hear of it, and what is left."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from mcp import MCPError

from tests.support.daemon import RunningDaemon
from tests.support.mcp import (
    ERAS,
    HEADERS,
    HELLO,
    answer_in,
    call,
    client,
    counter,
    leased,
    text_of,
)

pytestmark = pytest.mark.anyio


async def status_of(sandbox: str) -> dict[str, Any]:
    """The one server of a sandbox."""
    async with httpx.AsyncClient(timeout=30) as http:
        (status,) = (await http.get(f"{sandbox}/mcp")).json()["mcp_servers"]
    told: dict[str, Any] = status
    return told


@pytest.mark.parametrize("mode", ERAS)
async def test_call_in_flight_and_calls_after_it_hear_the_death_typed(
    daemon: RunningDaemon, mode: str
) -> None:
    async with leased(daemon.url) as sandbox:
        async with client(f"{sandbox}/mcp/counter", mode=mode) as speaker:
            assert await text_of(speaker, "add", by=1) == "1"
            for tool in ("die", "add", "add"):
                with pytest.raises(MCPError) as raised:
                    await speaker.call_tool(tool, {})
                data = raised.value.error.data
                assert (data["code"], data["fault"], data["mask"]) == ("conflict", "unknown", True)
                assert data["details"]["reason"] == "mcp_server_died"
                assert data["details"]["exit_code"] == 7
        assert (await status_of(sandbox))["state"] == "dead"


@pytest.mark.parametrize("mode", ERAS)
async def test_restart_on_exit_tells_each_death_and_then_serves_anew(
    daemon: RunningDaemon, mode: str
) -> None:
    servers = {"counter": counter(restart="on_exit")}
    async with leased(daemon.url, servers) as sandbox:
        async with client(f"{sandbox}/mcp/counter", mode=mode) as speaker:
            assert await text_of(speaker, "add", by=4) == "4"
            with pytest.raises(MCPError, match="died"):
                await speaker.call_tool("die", {})
            if mode == "legacy":  # a session hears of it once more: it knows nobody's calls but its
                with pytest.raises(MCPError, match="started anew"):
                    await speaker.call_tool("add", {})
            assert await text_of(speaker, "add", by=1) == "1"
        status = await status_of(sandbox)
    assert (status["state"], status["restarts"]) == ("running", 1)


async def test_death_that_no_call_saw_is_told_to_the_next(daemon: RunningDaemon) -> None:
    servers = {"counter": counter(restart="on_exit")}
    async with (
        leased(daemon.url, servers) as sandbox,
        httpx.AsyncClient(timeout=30) as http,
        client(f"{sandbox}/mcp/counter") as speaker,
    ):
        assert await text_of(speaker, "add", by=4) == "4"
        await http.post(f"{sandbox}/execs/mcp:counter:1/signal", json={"signal": "KILL"})
        with anyio.fail_after(10):
            while (await status_of(sandbox))["restarts"] == 0:
                await anyio.lowlevel.checkpoint()
        with pytest.raises(MCPError, match="died"):
            await speaker.call_tool("add", {})
        assert await text_of(speaker, "add", by=1) == "1"


@pytest.mark.parametrize(
    ("command", "words"),
    [(["/no/such"], "no such file"), (["sh", "-c", "echo broken >&2; exit 3"], "broken")],
)
async def test_server_that_cannot_start_is_the_tasks_fault_and_says_why(
    daemon: RunningDaemon, command: list[str], words: str
) -> None:
    async with (
        leased(daemon.url, {"bad": {"command": command}}) as sandbox,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for _ in range(2):
            answer = await http.post(f"{sandbox}/mcp/bad", json=HELLO, headers=HEADERS)
            data = answer_in(answer)["error"]["data"]
            assert (data["code"], data["fault"], data["mask"]) == ("start_failed", "task", True)
            assert words in str(data)
        assert (await status_of(sandbox))["state"] == "stopped"


async def test_released_sandbox_answers_gone_and_nothing_of_a_stubborn_server_is_left(
    daemon: RunningDaemon,
) -> None:
    servers = {"counter": counter("stubborn")}
    async with leased(daemon.url, servers) as sandbox, httpx.AsyncClient(timeout=30) as http:
        async with client(f"{sandbox}/mcp/counter") as speaker:
            await speaker.call_tool("children", {"count": 5, "s": 600})
        with anyio.fail_after(15):
            ended = await http.delete(sandbox, params={"wait_s": 15})
        assert ended.json()["state"] == "ended"
        gone = await http.post(f"{sandbox}/mcp/counter", json=call("add"), headers=HEADERS)
    assert (gone.status_code, gone.json()["code"]) == (410, "lease_ended")
