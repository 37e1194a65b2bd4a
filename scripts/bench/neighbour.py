"""A machine beside this one, for what must leave it: a network namespace at the end of a cable,
with a server in it that echoes, and one that sends as much as it is asked for. Needs root.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from subprocess import PIPE

import anyio

_HERE, _THERE, _BITS = "10.213.77.1", "10.213.77.2", 30
_SERVERS = """
import socket, sys, threading
def echo(s):
    while data := s.recv(1 << 16):
        s.sendall(data)
def source(s):
    piece, left = b"x" * (1 << 20), int(s.makefile().readline())
    for _ in range(left):
        s.sendall(piece)
def serve(port, act):
    def one(s):
        with s:
            try:
                act(s)
            except OSError:
                pass
    with socket.create_server((sys.argv[1], port), backlog=1024) as server:
        ready.release()
        while True:
            threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()
ready = threading.Semaphore(0)
for port, act in ((9000, source), (9001, echo)):
    threading.Thread(target=serve, args=(port, act), daemon=True).start()
    ready.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Where it is. source: send it a number and a line's end, and it sends as many MiB."""

    host: str = _THERE
    source: int = 9000
    echo: int = 9001


@asynccontextmanager
async def neighbour() -> AsyncIterator[Neighbour]:
    """Put one there and take it away again. Raises CalledProcessError where that is not allowed."""
    name, ours, theirs = f"bench-{os.getpid()}", f"bn{os.getpid()}h", f"bn{os.getpid()}n"
    steps = (
        ["netns", "add", name],
        ["link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name],
        ["addr", "add", f"{_HERE}/{_BITS}", "dev", ours],
        ["link", "set", ours, "up"],
        ["-n", name, "addr", "add", f"{_THERE}/{_BITS}", "dev", theirs],
        ["-n", name, "link", "set", theirs, "up"],
    )
    try:
        for step in steps:
            await anyio.run_process(["ip", *step])
        command = ["ip", "netns", "exec", name, sys.executable, "-c", _SERVERS, _THERE]
        async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            await server.stdout.receive()
            yield Neighbour()
            await server.stdin.aclose()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.run_process(["ip", "netns", "del", name], check=False)
