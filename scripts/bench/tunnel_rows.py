"""The rows about ways out: tunnels opened, filled, and hundreds open at once."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from sandboxd_client import AsyncProcess, AsyncSandbox, Stdout
from scripts.bench.asker import answers_ms, asking
from scripts.bench.figures import Figure, Row
from scripts.bench.house import House
from scripts.bench.measure import median
from scripts.bench.neighbour import Neighbour, neighbour

_OPENINGS = 100
_MIB = 500
_SANDBOXES, _TUNNELS = 8, 63  # of each: 504 tunnels

_INSIDE = """
import socket, sys, time
def tunnel(where):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode())
    assert b" 200 " in s.recv(4096)
    return s
def fill(s, mib):
    start, left, room = time.perf_counter(), mib << 20, bytearray(1 << 18)
    s.sendall(b"%d\\n" % mib)
    while left:
        left -= s.recv_into(room)
    return mib * 1.048576 / (time.perf_counter() - start)
"""


async def tunnel(house: House) -> list[Figure]:
    """A tunnel opened, and filled, against a connection without us."""
    if os.geteuid() != 0:
        print("tunnel: needs root, for a neighbour to lead to", file=sys.stderr)
        return []
    async with neighbour() as there, _lease(house, there) as sandbox:
        opening = await _say(
            sandbox,
            f"""
times = []
for _ in range({_OPENINGS}):
    start = time.perf_counter()
    s = tunnel("{there.host}:{there.echo}")
    times.append((time.perf_counter() - start) * 1000)
    s.close()
    time.sleep(0.03)
print(sorted(times)[len(times) // 2])
""",
        )
        speed = await _say(sandbox, f'print(fill(tunnel("{there.host}:{there.source}"), {_MIB}))')
        direct_ms = median([_opened_here_ms(there) for _ in range(_OPENINGS)])
        direct = _filled_here(there)
    return [
        Figure(
            name="a tunnel opened: more than without us",
            value=float(opening) - direct_ms,
            unit="ms",
            at_least=5,
            aim=2.5,
            against=f"{float(opening):.2f} ms against {direct_ms:.2f} ms",
        ),
        Figure(
            name="a tunnel filled",
            value=float(speed),
            unit="MB/s",
            at_least=100,
            aim=200,
            lower=False,
            against=f"without us {direct:.0f} MB/s",
        ),
    ]


async def tunnels(house: House) -> list[Figure]:
    """Hundreds of tunnels opened and spoken through: how long the loop was ever blocked."""
    if os.geteuid() != 0:
        print("tunnels: needs root, for a neighbour to lead to", file=sys.stderr)
        return []
    await house.wait_for_stock("warm", _SANDBOXES)
    async with neighbour() as there, AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(_lease(house, there)) for _ in range(_SANDBOXES)]
        async with asking(house.daemon.url) as asker:
            start = time.perf_counter()
            holding = [await _hold(box, there) for box in boxes]
            for process in holding:
                await _until_said(process, b"open")
            opened_s = time.perf_counter() - start
            for process in holding:
                await process.write(b"go\n")
            for process in holding:
                (await process.wait()).check()
            worst_ms, usual_ms = await answers_ms(asker)
    count = _SANDBOXES * _TUNNELS
    return [
        Figure(
            name=f"{count} tunnels: the longest that the loop was blocked",
            value=worst_ms,
            unit="ms",
            at_least=50,
            aim=20,
            against=f"an answer usually {usual_ms:.1f} ms; all open in {opened_s:.1f} s",
        )
    ]


def _lease(house: House, there: Neighbour) -> AbstractAsyncContextManager[AsyncSandbox]:
    ports = (there.source, there.echo)
    return house.client.lease("warm", network={"allow": [f"{there.host}:{p}" for p in ports]})


async def _say(sandbox: AsyncSandbox, text: str) -> str:
    result = await sandbox.exec(["python3", "-"], stdin=_INSIDE + text, timeout_s=120)
    return result.check().stdout


async def _hold(sandbox: AsyncSandbox, there: Neighbour) -> AsyncProcess:
    text = f"""
held = [tunnel("{there.host}:{there.echo}") for _ in range({_TUNNELS})]
print("open", flush=True)
sys.stdin.readline()
for number in range(20):
    for s in held:
        s.sendall(b"ping")
    for s in held:
        assert s.recv(4) == b"ping"
"""
    return await sandbox.start(["python3", "-c", _INSIDE + text], stdin_open=True, timeout_s=120)


async def _until_said(process: AsyncProcess, words: bytes) -> None:
    async for event in process.events():
        if isinstance(event, Stdout) and words in event.data:
            return


def _opened_here_ms(there: Neighbour) -> float:
    start = time.perf_counter()
    with socket.create_connection((there.host, there.echo)):
        return (time.perf_counter() - start) * 1000


def _filled_here(there: Neighbour) -> float:
    start = time.perf_counter()
    left, room = _MIB << 20, bytearray(1 << 18)
    with socket.create_connection((there.host, there.source)) as connection:
        connection.sendall(b"%d\n" % _MIB)
        while left:
            left -= connection.recv_into(room)
    return _MIB * 1.048576 / (time.perf_counter() - start)


ROWS = (
    Row(name="tunnel", measure=tunnel, warm=2),
    Row(name="tunnels", measure=tunnels, warm=_SANDBOXES),
)
