"""A server of one rollout on stdio, and its clients of both eras of the protocol."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import mcp_types
import pytest
from mcp.shared.subscriptions import ToolsListChanged

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
    request,
    text_of,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ERAS)
async def test_client_of_either_era_finds_tools_and_calls_them(
    daemon: RunningDaemon, mode: str
) -> None:
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode) as speaker,
    ):
        assert speaker.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert speaker.server_info is not None and speaker.server_info.name == "counter"
        assert speaker.instructions == "Counts."
        assert "add" in {tool.name for tool in (await speaker.list_tools()).tools}
        assert [await text_of(speaker, "add", by=by) for by in (2, 3)] == ["2", "5"]


async def test_clients_of_both_eras_share_one_server_and_its_state(daemon: RunningDaemon) -> None:
    async with leased(daemon.url) as sandbox:
        address = f"{sandbox}/mcp/counter"
        async with client(address) as new, client(address, mode="legacy") as old:
            totals = [int(await text_of(each, "add", by=1)) for each in (new, old, new, old)]
    assert totals == [1, 2, 3, 4]


async def test_two_leases_of_one_template_never_see_each_others_server(
    daemon: RunningDaemon,
) -> None:
    async with (
        leased(daemon.url) as one,
        leased(daemon.url) as other,
        client(f"{one}/mcp/counter") as a,
        client(f"{other}/mcp/counter") as b,
    ):
        assert await text_of(a, "add", by=5) == "5"
        assert await text_of(b, "add", by=1) == "1"


@pytest.mark.parametrize("mode", ERAS)
async def test_equal_ids_of_many_clients_never_meet(daemon: RunningDaemon, mode: str) -> None:
    async with leased(daemon.url) as sandbox:
        address = f"{sandbox}/mcp/counter"
        heard: dict[int, list[str]] = {}

        async def speak(number: int) -> None:
            async with client(address, mode=mode) as speaker:
                heard[number] = [
                    await text_of(speaker, "echo", text=f"{number}-{turn}") for turn in range(5)
                ]

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(speak, number)
    assert heard == {n: [f"{n}-{turn}" for turn in range(5)] for n in range(6)}


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_reaches_the_client_that_asked(daemon: RunningDaemon, mode: str) -> None:
    heard: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (3, None)
        heard.append(progress)

    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode) as speaker,
    ):
        await speaker.call_tool("progress", {}, progress_callback=note)
    assert heard == [0, 1, 2]


async def test_client_without_a_session_that_listens_hears_of_what_changed(
    daemon: RunningDaemon,
) -> None:
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter") as listener,
        client(f"{sandbox}/mcp/counter") as other,
    ):
        async with listener.listen(tools_list_changed=True) as changes:
            assert changes.honored.tools_list_changed
            await other.call_tool("change", {})
            with anyio.fail_after(10):
                event = await anext(aiter(changes))
        assert isinstance(event, ToolsListChanged)
        assert "change" in [tool.name for tool in (await listener.list_tools()).tools]


@pytest.mark.parametrize("mode", ERAS)
async def test_server_asks_its_client_for_a_sample_and_gets_it(
    daemon: RunningDaemon, mode: str
) -> None:
    async def sample(_context: Any, params: Any) -> mcp_types.CreateMessageResult:
        words = mcp_types.TextContent(type="text", text=f"of {params.max_tokens}")
        return mcp_types.CreateMessageResult(role="assistant", content=words, model="m")

    wanted = {"messages": [], "maxTokens": 9}
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode, sampling_callback=sample) as speaker,
    ):
        said = await text_of(speaker, "ask", method="sampling/createMessage", params=wanted)
    assert json.loads(said)["content"]["text"] == "of 9"


@pytest.mark.parametrize("mode", ERAS)
async def test_elicitation_passes_through(daemon: RunningDaemon, mode: str) -> None:
    async def fill(_context: Any, params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"said": params.message})

    schema = {"type": "object", "properties": {"said": {"type": "string"}}}
    wanted = {"message": "who?", "requestedSchema": schema}
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode, elicitation_callback=fill) as speaker,
    ):
        said = await text_of(speaker, "ask", method="elicitation/create", params=wanted)
    assert json.loads(said) == {"action": "accept", "content": {"said": "who?"}}


async def test_server_that_asks_what_no_client_can_answer_is_told_so(
    daemon: RunningDaemon,
) -> None:
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode="legacy") as speaker,
    ):
        said = json.loads(await text_of(speaker, "ask", method="roots/list"))
    assert said["code"] == -32601


async def test_unknown_methods_pass_both_ways(daemon: RunningDaemon) -> None:
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=30) as http:
        address = f"{sandbox}/mcp/counter"
        odd = request("odd/method", {"a": [None, 1, {"b": "ü"}]}, number="x-1")
        known = await http.post(address, json=odd, headers=HEADERS)
        unknown = await http.post(address, json=request("no/such"), headers=HEADERS)
    assert answer_in(known) == {
        "jsonrpc": "2.0",
        "id": "x-1",
        "result": {"params": {"a": [None, 1, {"b": "ü"}]}},
    }
    assert answer_in(unknown)["error"]["message"] == "no no/such"


async def test_made_up_session_is_404_and_initialize_with_it_begins_another(
    daemon: RunningDaemon,
) -> None:
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=30) as http:
        address, stale = f"{sandbox}/mcp/counter", {**HEADERS, "mcp-session-id": "made-up"}
        assert (await http.post(address, json=call("add"), headers=stale)).status_code == 404
        hello = await http.post(address, json=HELLO, headers=stale)
        assert hello.status_code == 200
        session = {**HEADERS, "mcp-session-id": hello.headers["mcp-session-id"]}
        assert session["mcp-session-id"] != "made-up"
        counted = await http.post(address, json=call("add", by=3), headers=session)
        assert answer_in(counted)["result"]["content"][0]["text"] == "3"
        assert (await http.delete(address, headers=session)).status_code == 200
        assert (await http.post(address, json=call("add"), headers=session)).status_code == 404


async def test_cancelled_call_leaves_one_healthy_server(daemon: RunningDaemon) -> None:
    async with leased(daemon.url) as sandbox:
        for mode in ERAS:
            async with client(f"{sandbox}/mcp/counter", mode=mode) as speaker:
                for _ in range(3):
                    with anyio.move_on_after(0.2):
                        await speaker.call_tool("sleep", {"s": 30})
                before = int(await text_of(speaker, "add", by=1))
                assert int(await text_of(speaker, "add", by=1)) == before + 1
        async with httpx.AsyncClient(timeout=30) as http:
            (status,) = (await http.get(f"{sandbox}/mcp")).json()["mcp_servers"]
            execs = (await http.get(f"{sandbox}/execs")).json()["execs"]
    assert (status["state"], status["restarts"]) == ("running", 0)
    assert [each["state"] for each in execs] == ["running"]


async def test_cuts_junk_and_split_lines_are_no_trouble(daemon: RunningDaemon) -> None:
    servers = {"counter": counter("early")}
    async with (
        leased(daemon.url, servers) as sandbox,
        client(f"{sandbox}/mcp/counter") as speaker,
    ):
        assert await text_of(speaker, "noise") == "heard"
        assert await text_of(speaker, "add", by=1) == "1"


async def test_large_messages_pass_both_ways(daemon: RunningDaemon) -> None:
    text = "ü" * 2_000_000
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter") as speaker,
    ):
        assert await text_of(speaker, "echo", text=text) == text


async def test_unknown_server_is_named_with_those_there_are(daemon: RunningDaemon) -> None:
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=30) as http:
        told = (await http.post(f"{sandbox}/mcp/nope", json=HELLO, headers=HEADERS)).json()
    assert told["code"] == "not_found"
    assert "counter" in told["detail"]
