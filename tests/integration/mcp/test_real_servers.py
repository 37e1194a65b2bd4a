"""Servers that others wrote, in sandboxes, and clients of both lines of the `mcp` package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from tests.support.daemon import ROOT, RunningDaemon, run_daemon
from tests.support.mcp_tools import node, node_modules, older_python, older_site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

_INSIDE = "/opt/npm/node_modules/@modelcontextprotocol"
_NODE = "/opt/npm/node_modules/node/bin/node"
_CONFIG = """
[templates.python]
image = "host"
resources = {{memory_mb = 1024, pids = 256}}
pool = {{ready = 1, max = 4}}
mounts = [
  {{source = "{base}", target = "/opt/python"}},
  {{source = "{site}", target = "/opt/site"}},
  {{source = "{modules}", target = "/opt/npm/node_modules"}},
]

[templates.python.mcp_servers.time]
command = ["/opt/python/bin/python3", "-m", "mcp_server_time", "--local-timezone", "UTC"]
env = {{PYTHONPATH = "/opt/site"}}

[templates.python.mcp_servers.git]
command = ["/opt/python/bin/python3", "-m", "mcp_server_git"]
env = {{PYTHONPATH = "/opt/site"}}

[templates.python.mcp_servers.memory]
command = ["{node}", "{inside}/server-memory/dist/index.js"]
env = {{MEMORY_FILE_PATH = "/workspace/memory.json"}}

[templates.python.mcp_servers.files]
command = ["{node}", "{inside}/server-filesystem/dist/index.js", "/workspace"]

[templates.python.mcp_servers.everything]
command = ["{node}", "{inside}/server-everything/dist/index.js", "stdio"]

[templates.python.mcp_servers.everything-http]
command = ["{node}", "{inside}/server-everything/dist/index.js", "streamableHttp"]
env = {{PORT = "3901"}}
port = 3901

[templates.python.mcp_servers.clock]
scope = "shared"

[mcp_servers.clock]
template = "python"
command = ["/opt/python/bin/python3", "-m", "mcp_server_time", "--local-timezone", "UTC"]
env = {{PYTHONPATH = "/opt/site"}}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon whose sandboxes have them."""
    assert node()
    config = _CONFIG.format(
        base=sys.base_prefix, site=older_site(), modules=node_modules(), inside=_INSIDE, node=_NODE
    )
    with run_daemon(tmp_path_factory.mktemp("real"), backend="local", config=config) as running:
        yield running


@pytest.fixture
def sandbox(daemon: RunningDaemon) -> Iterator[str]:
    """The address of one."""
    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        told = http.post("/v1/sandboxes", json={"template": "python"}).json()
        yield f"{daemon.url}/v1/sandboxes/{told['id']}"
        http.delete(f"/v1/sandboxes/{told['id']}", params={"wait_s": 10})


def older(url: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """What the older client hears: the tools' names, and each call's texts."""
    done = subprocess.run(
        [older_python(), "-P", Path(ROOT) / "tests" / "support" / "older_client.py", url],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


async def newer(url: str, tool: str, mode: str = "auto", **arguments: Any) -> str:
    """What the newer client hears of one call."""
    async with Client(url, mode=mode) as client:
        result = await client.call_tool(tool, arguments)
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


async def test_time_tells_the_time_for_one_rollout_and_for_all(
    sandbox: str, daemon: RunningDaemon
) -> None:
    for url in (f"{sandbox}/mcp/time", f"{sandbox}/mcp/clock", f"{daemon.url}/v1/mcp/clock"):
        assert '"timezone": "UTC"' in await newer(url, "get_current_time", timezone="UTC")
        names, told = older(url, ("get_current_time", {"timezone": "UTC"}))
        assert names == ["convert_time", "get_current_time"]
        assert '"timezone": "UTC"' in told[0]


async def test_git_works_in_the_sandboxs_own_folder(sandbox: str) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        text = "git init -q r && cd r && touch a && git -c user.name=a -c user.email=a@b add a"
        done = await http.post(f"{sandbox}/execs", json={"cmd": text})
        assert done.json()["exit_code"] == 0, done.text
    url = f"{sandbox}/mcp/git"
    assert "new file:   a" in await newer(url, "git_status", repo_path="/workspace/r")
    names, told = older(url, ("git_status", {"repo_path": "/workspace/r"}))
    assert "git_commit" in names
    assert "new file:   a" in told[0]


async def test_memory_remembers_from_client_to_client(sandbox: str) -> None:
    url = f"{sandbox}/mcp/memory"
    entity = {"name": "box", "entityType": "thing", "observations": ["is small"]}
    await newer(url, "create_entities", entities=[entity])
    assert "is small" in await newer(url, "read_graph", mode="legacy")
    _, told = older(url, ("read_graph", {}))
    assert "is small" in told[0]


async def test_filesystem_reads_and_writes_inside(sandbox: str) -> None:
    url = f"{sandbox}/mcp/files"
    await newer(url, "write_file", path="/workspace/a.txt", content="from a tool")
    async with httpx.AsyncClient(timeout=60) as http:
        read = await http.get(f"{sandbox}/files", params={"path": "a.txt"})
    assert read.text == "from a tool"


@pytest.mark.parametrize("name", ["everything", "everything-http"])
async def test_everything_on_stdio_and_on_http(sandbox: str, name: str) -> None:
    url = f"{sandbox}/mcp/{name}"
    names, echoed, added = older(url, ("echo", {"message": "hi"}), ("get-sum", {"a": 2, "b": 3}))
    assert "echo" in names
    assert echoed == ["Echo: hi"]
    assert re.search(r"\b5\b", added[0])
    async with Client(url, mode="legacy") as client:
        assert (await client.list_resources()).resources
        assert (await client.list_prompts()).prompts
        template = await client.get_prompt("simple-prompt")
        assert template.messages
