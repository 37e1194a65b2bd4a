"""Servers that leases share: started by their first use, scaled by their load, ended when idle."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.contract.columns import below_of, column_of
from tests.contract.speaker import config
from tests.support.daemon import RunningDaemon
from tests.support.mcp import (
    ERAS,
    HEADERS,
    answer_in,
    call,
    calls_logged,
    client,
    setup_words,
    text_of,
)
from tests.support.service import Service

pytestmark = pytest.mark.anyio

_TABLES = """
[templates.host]
image = {image}
pool = {{ready = 0, max = 8}}
{setup}
[templates.user_of]
image = {image}
pool = {{ready = 1, max = 8}}
[templates.user_of.mcp_servers.search]
scope = "shared"

[mcp_servers.search]
template = "host"
command = ["python3", "counter.py"]
replicas = {{min = 0, max = 2}}
max_in_flight = 2
idle_s = 1.0

[mcp_servers.kept]
template = "host"
command = ["python3", "counter.py"]

[mcp_servers.web]
template = "host"
command = ["python3", "http_counter.py", "9311"]
port = 9311
idle_s = 1.0
"""


@pytest.fixture(scope="module")
def settings(backend: str, request: pytest.FixtureRequest) -> str:
    """The usual templates, and shared servers."""
    column = column_of(below_of(backend, request))
    return config(column) + _TABLES.format(image=json.dumps(column.image), setup=setup_words())


async def replicas(http: httpx.AsyncClient, name: str = "search") -> int:
    """How many sandboxes a shared server has."""
    told = (await http.get("/v1/mcp")).json()["mcp_servers"]
    count: int = next(each["replicas"] for each in told if each["name"] == name)
    return count


async def until_there_are(http: httpx.AsyncClient, count: int, name: str = "search") -> None:
    """Wait for so many."""
    with anyio.fail_after(15):
        while await replicas(http, name) != count:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("name", ["search", "web"])
async def test_a_leases_call_is_logged_with_its_own_ids(daemon: RunningDaemon, name: str) -> None:
    body = {
        "template": "user_of",
        "rollout_id": f"of-{name}",
        "mcp_servers": {name: {"scope": "shared"}},
    }
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        sandbox = (await http.post("/v1/sandboxes", json=body)).json()["id"]
        async with client(f"{daemon.url}/v1/sandboxes/{sandbox}/mcp/{name}") as speaker:
            await speaker.call_tool("add", {"user": "u"})

        (told,) = calls_logged(daemon, "mcp.shared_call", sandbox_id=sandbox, name="add")
        assert (told["server"], told["name"], told["rollout_id"]) == (name, "add", f"of-{name}")
        await http.delete(f"/v1/sandboxes/{sandbox}")
        await until_there_are(http, 0, name)


@pytest.mark.parametrize("mode", ERAS)
async def test_first_use_starts_it_and_idleness_ends_it(daemon: RunningDaemon, mode: str) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        await until_there_are(http, 0)
        async with client(f"{daemon.url}/v1/mcp/search", mode=mode) as speaker:
            assert await text_of(speaker, "echo", text="x") == "x"
            assert await replicas(http) == 1
        await until_there_are(http, 0)
        assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_load_starts_a_second_and_no_third(daemon: RunningDaemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        async with (
            client(f"{daemon.url}/v1/mcp/search") as speaker,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(6):
                tasks.start_soon(lambda: text_of(speaker, "sleep", s=0.7))
            await until_there_are(http, 2)
        assert await replicas(http) <= 2


async def test_dead_replica_is_replaced_and_its_call_hears_the_death(
    daemon: RunningDaemon,
) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        died = await http.post("/v1/mcp/search", json=call("die"), headers=HEADERS)
        assert answer_in(died)["error"]["data"]["details"]["reason"] == "mcp_server_died"
        for _ in range(3):
            told = await http.post("/v1/mcp/search", json=call("echo", text="x"), headers=HEADERS)
            assert answer_in(told)["result"]["content"][0]["text"] == "x"


async def test_leases_that_list_it_reach_it_at_their_own_address(daemon: RunningDaemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        leases = []
        for _ in range(2):
            told = (await http.post("/v1/sandboxes", json={"template": "user_of"})).json()
            leases.append(f"/v1/sandboxes/{told['id']}")
        totals = []
        for path in leases:
            async with client(f"{daemon.url}{path}/mcp/search") as speaker:
                totals.append(await text_of(speaker, "add", by=1))
            (shown,) = (await http.get(f"{path}/mcp")).json()["mcp_servers"]
            assert (shown["name"], shown["scope"], shown["replicas"]) == ("search", "shared", 1)
        assert totals == ["1", "2"]  # one process serves both
        for path in leases:
            await http.delete(path)
        gone = await http.post(f"{leases[0]}/mcp/search", json=call("add"), headers=HEADERS)
        assert gone.status_code == 410


async def test_shared_server_on_a_port_is_passed_to(daemon: RunningDaemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        for total in ("1", "2"):
            told = await http.post("/v1/mcp/web", json=call("add"), headers=HEADERS)
            assert answer_in(told)["result"]["content"][0]["text"] == total


async def test_unknown_shared_server_is_not_found(daemon: RunningDaemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        told: dict[str, Any] = (await http.post("/v1/mcp/nope", json=call("add"))).json()
    assert (told["code"], told["status"]) == ("not_found", 404)


async def test_next_daemon_finds_its_sandboxes(
    open_service: Callable[[], AbstractContextManager[Service]],
) -> None:
    with open_service() as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            added = await http.post("/v1/mcp/kept", json=call("add", by=3), headers=HEADERS)
            assert answer_in(added)["result"]["content"][0]["text"] == "3"
        service.kill()
        service.start()
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            assert await replicas(http, "kept") == 1
            added = await http.post("/v1/mcp/kept", json=call("add", by=1), headers=HEADERS)
            assert answer_in(added)["result"]["content"][0]["text"] == "4"
