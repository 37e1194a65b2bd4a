"""The rows about MCP servers: a call of a tool against the same server here, and the first call of
a warm lease.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL

import anyio
import httpx
from mcp import Client

from scripts.bench.figures import Figure, Row, medians
from scripts.bench.house import House
from scripts.bench.measure import Pair, median, timed_ms

_SERVER = Path(__file__).with_name("mcp_server.py")
_CALLS, _ROUNDS = 200, 15
_READY_S = 20.0
_PORT = 9401
_VERSION = "2026-07-28"
_META = "io.modelcontextprotocol/"
_HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": _VERSION,
    "mcp-method": "tools/call",
    "mcp-name": "add",
}
_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "add",
        "arguments": {"by": 1},
        "_meta": {
            f"{_META}protocolVersion": _VERSION,
            f"{_META}clientCapabilities": {},
            f"{_META}clientInfo": {"name": "bench", "version": "1"},
        },
    },
}


async def calls(house: House) -> list[Figure]:
    """A tool's call by the `mcp` package's client, of both eras, on stdio and on a port inside."""
    figures: list[Figure] = []
    await _stop_making(house, 1)
    async with house.client.lease("tools") as sandbox, _server_here() as here:
        for mode, era in (("auto", "without a session"), ("legacy", "in a session")):
            for name, kind in (("stdio", "on stdio"), ("web", "on a port")):
                pair = await _in_turn(sandbox.mcp_url(name), here, mode=mode)
                figures += _against_here(pair, what=f"{kind}, {era}")
    return figures


async def _in_turn(ours: str, other: str, *, mode: str) -> Pair:
    pair = Pair([], [])
    async with Client(ours, mode=mode) as through, Client(other, mode=mode) as direct:
        for number in range(_CALLS + 20):
            ours_ms = await timed_ms(lambda: _add(through))
            other_ms = await timed_ms(lambda: _add(direct))
            if number >= 20:
                pair.ours.append(ours_ms)
                pair.other.append(other_ms)
    return pair


async def _add(client: Client) -> None:
    await client.call_tool("add", {"by": 1})


def _against_here(pair: Pair, *, what: str) -> list[Figure]:
    return [
        Figure(
            name=f"a tool's call {what}, against the same server here",
            value=pair.ratio,
            unit="×",
            at_least=2,
            aim=1.3,
            against=medians(pair),
        ),
        Figure(
            name=f"a tool's call {what}: more than here",
            value=median(pair.ours) - median(pair.other),
            unit="ms",
            at_least=5,
            aim=2,
        ),
    ]


async def first_call(house: House) -> list[Figure]:
    """From the question for a warm lease to the first result of its prestarted server."""
    times: list[float] = []
    await _stop_making(house, _ROUNDS)
    async with httpx.AsyncClient(base_url=house.daemon.url, timeout=30) as http:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            lease = (await http.post("/v1/sandboxes", json={"template": "tools"})).json()
            path = f"/v1/sandboxes/{lease['id']}"
            answer = await http.post(f"{path}/mcp/stdio", json=_CALL, headers=_HEADERS)
            times.append((time.perf_counter() - start) * 1000)
            assert answer.json()["result"]["structuredContent"] == {"result": 1}, answer.text
            await http.delete(path)
    return [
        Figure(
            name="a warm lease and the first result of its prestarted tool",
            value=median(times),
            unit="ms",
            at_least=30,
            aim=15,
            against=f"longest {max(times):.1f} ms",
        )
    ]


async def _stop_making(house: House, ready: int) -> None:
    """The start of a new sandbox's servers takes a whole processor for a second."""
    await house.wait_for_stock("tools", ready)
    await house.adjust("tools", paused=True)


@asynccontextmanager
async def _server_here() -> AsyncIterator[str]:
    command = [sys.executable, str(_SERVER), str(_PORT)]
    async with await anyio.open_process(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            with anyio.fail_after(_READY_S):
                await _until_listening()
            yield f"http://127.0.0.1:{_PORT}/mcp"
        finally:
            process.kill()


async def _until_listening() -> None:
    while True:
        try:
            await anyio.aclose_forcefully(await anyio.connect_tcp("127.0.0.1", _PORT))
            return
        except OSError:
            await anyio.sleep(0.05)


ROWS = (
    Row(name="mcp-calls", measure=calls, tools=1),
    Row(name="mcp-first", measure=first_call, tools=_ROUNDS),
)
