"""Another process that asks the daemon whether it is well, all the time: how long the worst answer
took bounds how long the daemon's loop was ever blocked.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE

import anyio
from anyio.abc import Process

_ASK = """
import http.client, sys, threading, time, urllib.parse
line = http.client.HTTPConnection(urllib.parse.urlsplit(sys.argv[1]).netloc)
done, times = threading.Event(), []
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.wait(0.002):
    start = time.perf_counter()
    line.request("GET", "/healthz")
    line.getresponse().read()
    times.append((time.perf_counter() - start) * 1000)
print(max(times), sorted(times)[len(times) // 2])
"""


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Process]:
    """Another process that asks the daemon whether it is well, all the time."""
    command = [sys.executable, "-c", _ASK, url]
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as asker:
        yield asker


async def answers_ms(asker: Process) -> tuple[float, float]:
    """Have it stop: its longest wait for an answer, and the median."""
    assert asker.stdin is not None
    assert asker.stdout is not None
    await asker.stdin.aclose()
    told = b"".join([piece async for piece in asker.stdout])
    worst, usual = map(float, told.split())
    return worst, usual
