"""Servers that run in warm sandboxes before anybody leases them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.contract.columns import below_of, column_of
from tests.contract.speaker import config
from tests.support.daemon import RunningDaemon
from tests.support.mcp import HEADERS, answer_in, call, client, setup_words, text_of

pytestmark = pytest.mark.anyio

_TEMPLATE = """
[templates.early]
image = {image}
pool = {{ready = 1, max = 8}}
env = {{FROM = "template"}}
{setup}
[templates.early.mcp_servers.counter]
command = ["python3", "counter.py"]
prestart = true

[templates.early.mcp_servers.web]
command = ["python3", "http_counter.py", "9311"]
port = 9311
prestart = true
"""


@pytest.fixture(scope="module")
def settings(backend: str, request: pytest.FixtureRequest) -> str:
    """The usual templates, and one whose servers run early."""
    column = column_of(below_of(backend, request))
    image = f'"{column.image}"'
    return config(column) + _TEMPLATE.format(image=image, setup=setup_words())


async def lease(http: httpx.AsyncClient, **more: Any) -> tuple[str, bool]:
    """The path of a sandbox, and whether it was warm."""
    body = {"template": "early", **more}
    told = (await http.post("/v1/sandboxes", json=body)).json()
    return f"/v1/sandboxes/{told['id']}", told["warm"]


async def states(http: httpx.AsyncClient, path: str) -> dict[str, tuple[str, int]]:
    """What is told of each server."""
    told = (await http.get(f"{path}/mcp")).json()["mcp_servers"]
    return {each["name"]: (each["state"], each["restarts"]) for each in told}


async def first_pids(http: httpx.AsyncClient, path: str) -> list[str]:
    """The ids of the commands that run."""
    told = (await http.get(f"{path}/execs")).json()["execs"]
    return sorted(each["exec_id"] for each in told if each["state"] == "running")


async def test_server_that_ran_before_the_lease_is_the_one_that_serves(
    daemon: RunningDaemon,
) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        path, _ = await lease(http)
        assert await first_pids(http, path) == ["mcp:counter:0", "mcp:web:0"]
        async with client(f"{daemon.url}{path}/mcp/counter") as speaker:
            assert await text_of(speaker, "add", by=1) == "1"
            assert await text_of(speaker, "env", name="FROM") == "template"
        told = await http.post(f"{path}/mcp/web", json=call("add"), headers=HEADERS)
        assert answer_in(told)["result"]["content"][0]["text"] == "1"
        assert await first_pids(http, path) == ["mcp:counter:0", "mcp:web:0"]
        assert await states(http, path) == {"counter": ("running", 0), "web": ("running", 0)}
        await http.delete(path)


async def test_lease_with_variables_of_its_own_gets_servers_that_have_them(
    daemon: RunningDaemon,
) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        path, _ = await lease(http, env={"FROM": "lease"}, secrets={"KEY": "secret"})
        assert await states(http, path) == {"counter": ("stopped", 0), "web": ("stopped", 0)}
        async with client(f"{daemon.url}{path}/mcp/counter") as speaker:
            assert await text_of(speaker, "env", name="FROM") == "lease"
            assert await text_of(speaker, "env", name="KEY") == "secret"
        assert (await states(http, path))["counter"] == ("running", 0)
        await http.delete(path)


async def test_lease_sees_only_the_servers_that_it_names(daemon: RunningDaemon) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        path, _ = await lease(http, mcp_servers=["counter"])
        assert list(await states(http, path)) == ["counter"]
        assert (await http.post(f"{path}/mcp/web", json=call("add"))).status_code == 404
        assert await first_pids(http, path) == ["mcp:counter:0"]
        await http.delete(path)


async def test_lease_may_declare_a_server_in_place_of_one_that_runs(daemon: RunningDaemon) -> None:
    own = {"command": ["python3", "counter.py"], "env": {"FROM": "own"}}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        path, _ = await lease(http, mcp_servers={"counter": own})
        async with client(f"{daemon.url}{path}/mcp/counter") as speaker:
            assert await text_of(speaker, "env", name="FROM") == "own"
        assert await states(http, path) == {"counter": ("running", 0), "web": ("running", 0)}
        await http.delete(path)
