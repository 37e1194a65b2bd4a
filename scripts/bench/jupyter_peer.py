"""Jupyter's own client and a kernel of its own, in another process: what ours is held against.

`python -m scripts.bench.jupyter_peer`: for each line of its input, `cell` or `start`, it does that
once and says how many milliseconds it took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import DEVNULL, PIPE

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

_PATIENCE_S = 60.0


class JupyterPeer:
    """The process, from outside."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)

    async def cell_ms(self) -> float:
        """How long `1 + 1` takes."""
        return await self._ask("cell")

    async def start_ms(self) -> float:
        """How long another kernel takes from its start until it is ready; it is gone again then."""
        return await self._ask("start")

    async def _ask(self, what: str) -> float:
        await self._input.send(f"{what}\n".encode())
        return float(await self._output.receive_until(b"\n", 64))


@asynccontextmanager
async def jupyter_peer() -> AsyncIterator[JupyterPeer]:
    """Start it; it and its kernel end with the block."""
    command = [sys.executable, "-m", "scripts.bench.jupyter_peer"]
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as process:
        yield JupyterPeer(process)
        assert process.stdin is not None
        await process.stdin.aclose()
        await process.wait()


def _main() -> None:
    manager, client = start_new_kernel(stderr=DEVNULL)
    try:
        for line in sys.stdin:
            ms = _cell_ms(client) if line.strip() == "cell" else _start_ms()
            print(ms, flush=True)
    finally:
        _end(manager, client)


def _cell_ms(client: BlockingKernelClient) -> float:
    """Until its reply and its idle are both in."""
    start = time.perf_counter()
    asked = client.execute("1 + 1")
    value, idle = "", False
    while not idle:
        message = client.get_iopub_msg(timeout=_PATIENCE_S)
        if message["parent_header"].get("msg_id") == asked:
            value = message["content"].get("data", {}).get("text/plain", value)
            idle = message["content"].get("execution_state") == "idle"
    while client.get_shell_msg(timeout=_PATIENCE_S)["parent_header"].get("msg_id") != asked:
        pass
    assert value == "2"
    return (time.perf_counter() - start) * 1000


def _start_ms() -> float:
    start = time.perf_counter()
    manager, client = start_new_kernel(stderr=DEVNULL)
    elapsed_ms = (time.perf_counter() - start) * 1000
    _end(manager, client)
    return elapsed_ms


def _end(manager: KernelManager, client: BlockingKernelClient) -> None:
    client.stop_channels()
    manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    _main()
