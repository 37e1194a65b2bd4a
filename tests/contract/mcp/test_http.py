"""Servers that speak HTTP inside: passed on as they flow."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.support.daemon import RunningDaemon
from tests.support.mcp import (
    ERAS,
    HEADERS,
    HELLO,
    answer_in,
    call,
    calls_logged,
    client,
    counter,
    http_counter,
    leased,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ERAS)
async def test_client_of_either_era_reaches_a_server_on_a_port(
    daemon: RunningDaemon, mode: str
) -> None:
    async with (
        leased(daemon.url, {"web": http_counter()}) as sandbox,
        client(f"{sandbox}/mcp/web", mode=mode) as speaker,
    ):
        for total in ("1", "2"):
            result = await speaker.call_tool("add", {"user": "u"})
            assert result.content[0].text == total  # type: ignore[union-attr]


async def test_headers_sessions_and_streams_are_the_servers_own(daemon: RunningDaemon) -> None:
    async with (
        leased(daemon.url, {"web": http_counter()}) as sandbox,
        httpx.AsyncClient(timeout=30) as http,
    ):
        address = f"{sandbox}/mcp/web"
        hello = await http.post(address, json=HELLO, headers=HEADERS)
        assert (hello.headers["mcp-session-id"], hello.headers["x-own"]) == ("inner", "kept")
        sent = {**HEADERS, "mcp-session-id": "any", "x-unknown": "1", "mcp-name": "headers"}
        told = await http.post(address, json=call("headers"), headers=sent)
        assert told.headers["content-type"] == "text/event-stream"
        heard = json.loads(answer_in(told)["result"]["content"][0]["text"])
        assert {"mcp-session-id": "any", "x-unknown": "1", "mcp-name": "headers"}.items() <= (
            heard.items()
        )
        assert "authorization" not in heard
        assert "list_changed" in (await http.get(address, headers=HEADERS)).text
        assert (await http.delete(address)).status_code == 200


@pytest.mark.parametrize("name", ["counter", "web"])
async def test_each_call_is_a_line_of_the_log_with_the_leases_ids_and_no_argument(
    daemon: RunningDaemon, name: str
) -> None:
    servers = {"counter": counter(), "web": http_counter()}
    async with (
        leased(daemon.url, servers, run_id="run-of-logs", rollout_id=name) as sandbox,
        client(f"{sandbox}/mcp/{name}") as speaker,
    ):
        await speaker.call_tool("add", {"user": "canary-of-an-argument"})

    (told,) = calls_logged(daemon, "mcp.call", rollout_id=name, method="tools/call")
    assert "canary-of-an-argument" not in daemon.log.read_text()
    assert (told["server"], told["name"], told["run_id"]) == (name, "add", "run-of-logs")
    assert sandbox.endswith(told["sandbox_id"])
    assert told["duration_s"] >= 0


async def test_dead_server_on_a_port_is_a_typed_error(daemon: RunningDaemon) -> None:
    async with (
        leased(daemon.url, {"web": http_counter()}) as sandbox,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for tool in ("die", "add", "add"):
            answer = await http.post(f"{sandbox}/mcp/web", json=call(tool), headers=HEADERS)
            data = answer_in(answer)["error"]["data"]
            assert (data["code"], data["mask"]) == ("conflict", True)
            assert data["details"]["reason"] == "mcp_server_died"
            assert data["details"]["exit_code"] == 9


async def test_server_on_a_port_that_others_start_is_passed_to_as_well(
    daemon: RunningDaemon,
) -> None:
    async with (
        leased(daemon.url, {"web": {"port": 9312, "path": "/any"}}) as sandbox,
        httpx.AsyncClient(timeout=30) as http,
    ):
        refused = await http.post(f"{sandbox}/mcp/web", json=call("add"), headers=HEADERS)
        assert answer_in(refused)["error"]["data"]["details"]["reason"] == "refused"
        start = {"cmd": ["python3", "http_counter.py", "9312"], "detach": True}
        await http.post(f"{sandbox}/execs", json=start)
        with_patience = {
            "cmd": "until python3 -c 'import socket; socket.create_connection"
            '(("127.0.0.1", 9312))\' 2>&1; do sleep 0.05; done',
            "timeout_s": 10,
        }
        await http.post(f"{sandbox}/execs", json=with_patience)
        told = await http.post(f"{sandbox}/mcp/web", json=call("add"), headers=HEADERS)
        assert answer_in(told)["result"]["content"][0]["text"] == "1"
