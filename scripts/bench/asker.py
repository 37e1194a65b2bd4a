"""Another process that asks the daemon whether it is well, all the time: how long the worst answer
took bounds how long the daemon's loop was ever blocked.

Where every processor is busy by design the daemon waits for one as well. The kernel counts that, so
it can be left out; what is left bounds still how long the loop was blocked.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from subprocess import PIPE

import anyio
from anyio.abc import Process

_ASK = """
import contextlib, http.client, os, sys, threading, time, urllib.parse
with contextlib.suppress(PermissionError):
    os.nice(-10)  # its own waits would count as the daemon's
line = http.client.HTTPConnection(urllib.parse.urlsplit(sys.argv[1]).netloc)
daemon = f"/proc/{sys.argv[2]}/task/{sys.argv[2]}/schedstat"
done, times, served = threading.Event(), [], []
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
def queued_s():
    with open(daemon) as file:
        return int(file.read().split()[1]) / 1e9
while not done.wait(0.002):
    queued, start = queued_s(), time.perf_counter()
    line.request("GET", "/healthz")
    line.getresponse().read()
    took = time.perf_counter() - start
    times.append(took * 1000)
    served.append((took - (queued_s() - queued)) * 1000)
print(max(times), sorted(times)[len(times) // 2], max(served))
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """Of all answers, in milliseconds: the longest, the median, and the longest without the time
    that the daemon's first thread waited for a processor.
    """

    worst: float
    usual: float
    worst_served: float


@asynccontextmanager
async def asking(url: str, daemon: int) -> AsyncIterator[Process]:
    """Another process that asks the daemon, of that process id, whether it is well."""
    command = [sys.executable, "-c", _ASK, url, str(daemon)]
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as asker:
        yield asker


async def answers_ms(asker: Process) -> Answers:
    """Have it stop, and say how long its answers took."""
    assert asker.stdin is not None
    assert asker.stdout is not None
    await asker.stdin.aclose()
    told = b"".join([piece async for piece in asker.stdout])
    return Answers(*map(float, told.split()))
