"""MCP servers in sandboxes of a daemon under test, and clients of both eras."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from mcp import Client

from tests.contract.speaker import eventually
from tests.support.daemon import RunningDaemon

COUNTER = (Path(__file__).parent / "counter_server.py").read_text(encoding="utf-8")
HTTP_COUNTER = (Path(__file__).parent / "http_counter.py").read_text(encoding="utf-8")
ERAS = ("auto", "legacy")  # of `Client`: without sessions, and with `initialize`


def counter(*words: str, **more: Any) -> dict[str, Any]:
    """The declaration of the counting server."""
    return {"command": ["python3", "counter.py", *words], **more}


def http_counter(port: int = 9311, **more: Any) -> dict[str, Any]:
    """The declaration of the same on HTTP."""
    return {"command": ["python3", "http_counter.py", str(port)], "port": port, **more}


def setup_words() -> str:
    """What has a template's sandboxes hold both, as TOML."""
    texts = {"counter.py": COUNTER, "http_counter.py": HTTP_COUNTER}
    packed = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    commands = [f"echo {data} | base64 -d > {name}" for name, data in packed.items()]
    return f"setup = {json.dumps(commands)}\n"


def lease_body(servers: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A lease that has it, alone or beside others."""
    files = {"counter.py": {"text": COUNTER}, "http_counter.py": {"text": HTTP_COUNTER}}
    return {
        "template": "python",
        "files": files,
        "mcp_servers": servers if servers is not None else {"counter": counter()},
        **more,
    }


@asynccontextmanager
async def leased(
    url: str, servers: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[str]:
    """The address of a sandbox that has MCP servers."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post("/v1/sandboxes", json=lease_body(servers, **more))
        assert answer.status_code == 201, answer.text
        address = f"{url}/v1/sandboxes/{answer.json()['id']}"
        yield address
        with suppress(httpx.HTTPError):  # of a daemon that the test ended
            await http.delete(address, params={"wait_s": 10})


@asynccontextmanager
async def client(address: str, *, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
    """A client of the `mcp` package."""
    async with Client(address, mode=mode, **options) as made:
        yield made


async def text_of(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool answers."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


def request(method: str, params: Mapping[str, Any] | None = None, *, number: Any = 1) -> Any:
    """A bare request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params or {})}


def call(tool: str, *, number: Any = 1, **arguments: Any) -> Any:
    """A bare call of a tool."""
    return request("tools/call", {"name": tool, "arguments": arguments}, number=number)


HEADERS = {"accept": "application/json, text/event-stream"}
HELLO = request(
    "initialize",
    {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bare", "version": "0"},
    },
)


def answer_in(response: httpx.Response) -> Any:
    """The last message of an answer, plain or a stream."""
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    lines = [line[5:].strip() for line in response.text.splitlines() if line.startswith("data:")]
    return json.loads([line for line in lines if line][-1])


def calls_logged(daemon: RunningDaemon, event: str, **facts: Any) -> list[dict[str, Any]]:
    """The lines of a daemon's log of that event that have these members; waits for the first."""

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in daemon.log.read_text().splitlines()]
        wanted = {"event": event, **facts}
        return [line for line in lines if wanted.items() <= line.items()]

    eventually(lambda: bool(found()), within_s=5, what=f"{event} is logged")
    return found()
