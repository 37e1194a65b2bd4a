"""Bug cases MC: MCP servers whose state is one rollout's, and that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest

from tests.contract.cases.houses import House
from tests.contract.cases.times import scaled
from tests.contract.speaker import eventually
from tests.support.daemon import RunningDaemon
from tests.support.mcp import (
    ERAS,
    HEADERS,
    HELLO,
    answer_in,
    call,
    client,
    counter,
    lease_body,
    leased,
    text_of,
)

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractContextManager[House]]


async def running(http: httpx.AsyncClient, sandbox: str) -> list[str]:
    """The ids of the commands that run in a sandbox."""
    told = (await http.get(f"{sandbox}/execs")).json()["execs"]
    return [each["exec_id"] for each in told if each["state"] == "running"]


async def begin(http: httpx.AsyncClient, address: str, **headers: str) -> dict[str, str]:
    """The headers of a session of a bare client. headers: that it sends at its beginning."""
    hello = await http.post(address, json=HELLO, headers={**HEADERS, **headers})
    assert hello.status_code == 200, hello.text
    return {**HEADERS, "mcp-session-id": hello.headers["mcp-session-id"]}


async def release_all(url: str) -> int:
    """Give every sandbox back, and wait until they are gone; how many there were."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        found = (await http.get("/v1/sandboxes")).json()["sandboxes"]
        for told in found:
            await http.delete(f"/v1/sandboxes/{told['id']}", params={"wait_s": 10})
    return len(found)


@pytest.mark.requirement("MC-02")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.slow)])
async def test_mc_02_each_rollout_counts_by_itself(open_house: OpenHouse, count: int) -> None:
    small: dict[str, Any] = {"resources": {"memory_mb": 64, "pids": 32}, "wait_timeout_s": 200}
    totals: list[str] = []
    with open_house(pool="ready = 0, max = 60, starting = 4") as house:

        async def one(number: int) -> None:
            async with (
                leased(house.url, **small) as sandbox,
                client(f"{sandbox}/mcp/counter", mode=ERAS[number % 2]) as speaker,
            ):
                async with anyio.create_task_group() as calls:
                    for _ in range(19):
                        calls.start_soon(lambda: text_of(speaker, "add", by=1))
                totals.append(await text_of(speaker, "add", by=1))

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
    assert totals == ["20"] * count


@pytest.mark.requirement("MC-03")
async def test_mc_03_session_that_nobody_knows_is_404_so_that_another_is_begun(
    open_house: OpenHouse,
) -> None:
    with open_house() as house:
        async with httpx.AsyncClient(base_url=house.url, timeout=30) as http:
            place = (await http.post("/v1/sandboxes", json=lease_body())).json()["id"]
            path = f"/v1/sandboxes/{place}/mcp/counter"
            known = await begin(http, path)
            made_up = {**HEADERS, "mcp-session-id": "00000000-made-up"}
            unknown = await http.post(path, json=call("add"), headers=made_up)
            assert unknown.status_code == 404
            await http.post(path, json=call("add", by=5), headers=known)
        house.service.kill()
        house.service.start()
        async with httpx.AsyncClient(base_url=house.url, timeout=30) as http:
            after = await http.post(path, json=call("add"), headers=known)
            assert after.status_code == 404
            fresh = await begin(http, path, **known)
            told = await http.post(path, json=call("add", by=1), headers=fresh)
            assert answer_in(told)["result"]["content"][0]["text"] == "6"  # the server lived on
            await http.delete(f"/v1/sandboxes/{place}")
            gone = await http.post(path, json=call("add"), headers=fresh)
            assert (gone.status_code, gone.json()["code"]) == (410, "lease_ended")


@pytest.mark.requirement("MC-04")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.slow)])
async def test_mc_04_what_is_cancelled_leaves_one_healthy_server(
    daemon: RunningDaemon, times: int
) -> None:
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=30) as http:
        address = f"{sandbox}/mcp/counter"
        for number in range(times):  # of them the first cuts a start
            with anyio.move_on_after(0.3 * number / times):
                if number % 2:
                    async with client(address, mode=ERAS[number // 2 % 2]) as speaker:
                        await speaker.call_tool("sleep", {"s": 30})
                else:
                    await http.post(address, json=call("sleep", s=30), headers=HEADERS)
        assert await running(http, sandbox) == ["mcp:counter:1"]
        async with client(address) as speaker:
            assert await text_of(speaker, "add", by=1) == "1"


@pytest.mark.requirement("MC-06")
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_mc_06_servers_go_with_their_sandboxes_and_outlive_no_killed_daemon(
    open_house: OpenHouse,
) -> None:
    count = 8
    with open_house(pool="ready = 0, max = 20, starting = 4") as house:
        async with AsyncExitStack() as stack, httpx.AsyncClient(timeout=60) as http:
            for number in range(count):
                body: dict[str, Any] = {"timeout_s": 600 if number % 2 else 20}
                sandbox = await stack.enter_async_context(leased(house.url, **body))
                await http.post(f"{sandbox}/mcp/counter", json=call("add"), headers=HEADERS)
                if number == 0:
                    await http.delete(sandbox, params={"wait_s": 10})
                    assert house.living() == set()
            house.service.kill()
            # Those whose time is up end by themselves, the others are found again.
            await anyio.to_thread.run_sync(
                lambda: eventually(
                    lambda: len(house.living()) == count // 2, within_s=60, what="they end"
                )
            )
            house.service.start()
        assert await release_all(house.url) == count // 2
        assert house.living() == set()


@pytest.mark.requirement("MC-08")
async def test_mc_08_junk_cuts_and_joined_lines_end_nothing(daemon: RunningDaemon) -> None:
    servers = {"counter": counter("early")}
    async with leased(daemon.url, servers) as sandbox:
        for mode in ERAS:
            async with client(f"{sandbox}/mcp/counter", mode=mode) as speaker:
                assert await text_of(speaker, "noise") == "heard"
                assert await text_of(speaker, "echo", text="hä\r\nllo") == "hä\r\nllo"


@pytest.mark.requirement("MC-09")
@pytest.mark.timeout(60)
async def test_mc_09_server_that_hears_no_end_is_gone_all_the_same(open_house: OpenHouse) -> None:
    servers = {"counter": counter("stubborn")}
    with open_house(pool="ready = 0, max = 4") as house:
        async with leased(house.url, servers) as sandbox, httpx.AsyncClient(timeout=30) as http:
            await http.post(f"{sandbox}/mcp/counter", json=call("add"), headers=HEADERS)
            with anyio.fail_after(15):
                await http.delete(sandbox, params={"wait_s": 15})
            assert house.living() == set()
        async with leased(house.url, servers) as sandbox, httpx.AsyncClient(timeout=30) as http:
            await http.post(f"{sandbox}/mcp/counter", json=call("add"), headers=HEADERS)
            with anyio.fail_after(10):  # a stop of the daemon is no end of a lease
                await anyio.to_thread.run_sync(house.service.stop)
            assert len(house.living()) == 1
            house.service.start()
        assert await release_all(house.url) == 1
        assert house.living() == set()


@pytest.mark.requirement("MC-10")
async def test_mc_10_opened_called_and_closed_by_others_while_the_daemon_stops(
    open_house: OpenHouse,
) -> None:
    with open_house() as house:
        async with leased(house.url) as sandbox, httpx.AsyncClient(timeout=30) as http:
            address = f"{sandbox}/mcp/counter"
            headers = await begin(http, address)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: _ask(http, address, call("sleep", s=1.0), headers))
                tasks.start_soon(lambda: _ask(http, address, call("add"), headers))
                await anyio.lowlevel.checkpoint()
                await http.delete(address, headers=headers)
                tasks.start_soon(lambda: _ask(http, address, call("sleep", s=30), HEADERS))
                await anyio.to_thread.run_sync(house.service.stop)
            house.service.start()
        said = await anyio.Path(house.service.log).read_text()
        assert "cancel scope" not in said
        assert "Traceback" not in said


async def _ask(
    http: httpx.AsyncClient, address: str, body: Any, headers: dict[str, str]
) -> httpx.Response | None:
    """One request, whatever becomes of it."""
    try:
        return await http.post(address, json=body, headers=headers)
    except httpx.HTTPError:
        return None


@pytest.mark.requirement("MC-11")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.slow)])
async def test_mc_11_abandoned_sessions_are_dropped_and_the_busy_one_is_not(
    daemon: RunningDaemon, count: int
) -> None:
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=60) as http:
        address = f"{sandbox}/mcp/counter"
        busy = await begin(http, address)
        async with anyio.create_task_group() as tasks:
            answers: list[httpx.Response | None] = []

            async def work() -> None:
                answers.append(await _ask(http, address, call("sleep", s=6), busy))

            tasks.start_soon(work)
            for _ in range(count):
                hello = await http.post(address, json=HELLO, headers=HEADERS)
                assert hello.status_code == 200, hello.text
            (told,) = (await http.get(f"{sandbox}/mcp")).json()["mcp_servers"]
            assert told["sessions"] <= 256
        (slept,) = answers
        assert slept is not None
        assert answer_in(slept)["result"]["content"][0]["text"] == "slept"


@pytest.mark.requirement("TO-10")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("mode", ERAS)
@scaled(1 / 30)
async def test_to_10_a_tool_may_take_its_time(
    daemon: RunningDaemon, scale: float, mode: str
) -> None:
    async with (
        leased(daemon.url) as sandbox,
        client(f"{sandbox}/mcp/counter", mode=mode) as speaker,
    ):
        assert await text_of(speaker, "sleep", s=75 * scale) == "slept"


@pytest.mark.requirement("LC-05")
@pytest.mark.timeout(150)
@scaled(1 / 16)
async def test_lc_05_who_waits_for_a_tool_is_not_idle(daemon: RunningDaemon, scale: float) -> None:
    async with leased(daemon.url, idle_timeout_s=10 * scale) as sandbox:
        async with client(f"{sandbox}/mcp/counter", mode="legacy") as speaker:
            assert await text_of(speaker, "sleep", s=40 * scale) == "slept"
            assert await text_of(speaker, "add", by=1) == "1"
            async with httpx.AsyncClient(timeout=60) as http:  # its open stream alone is no use
                ended = await http.get(sandbox, params={"wait_s": 30})
                with anyio.fail_after(30):
                    while ended.json()["end"] is None:
                        ended = await http.get(sandbox)
        assert ended.json()["end"]["reason"] == "idle"


@pytest.mark.requirement("RL-10")
async def test_rl_10_what_a_server_leaves_behind_is_reaped(daemon: RunningDaemon) -> None:
    zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    async with leased(daemon.url) as sandbox, httpx.AsyncClient(timeout=60) as http:
        async with client(f"{sandbox}/mcp/counter") as speaker:
            await text_of(speaker, "children", count=100)
        with anyio.fail_after(5):
            while True:
                seen = (await http.post(f"{sandbox}/execs", json={"cmd": zombies})).json()
                if int(seen["stdout"] or 0) <= 10:
                    break
