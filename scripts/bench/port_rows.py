"""The rows about ports: HTTP against the same server here, and hundreds of WebSockets at once."""

from __future__ import annotations

import http.client
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from subprocess import PIPE
from urllib.parse import urlsplit

import anyio

from sandboxd_client import AsyncSandbox
from scripts.bench.asker import answers_ms, asking
from scripts.bench.figures import Figure, Row
from scripts.bench.house import House
from scripts.bench.measure import median

_PORT = 8000
_REQUESTS = 500
_MIB, _TIMES = 400, 3
_SANDBOXES, _SOCKETS = 8, 63  # of each: 504 WebSockets
_ROUNDS = 20
_READY_S = 10.0

# `/N` is answered with N MiB, `/ws` by sending back whatever comes.
_SERVER = """
import socket, sys, threading
def answer(s):
    file = s.makefile("rb")
    while line := file.readline():
        head = b""
        while (more := file.readline()) not in (b"\\r\\n", b""):
            head += more.lower()
        path = line.split()[1]
        if path == b"/ws":
            s.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\n"
                      b"Upgrade: websocket\\r\\n\\r\\n")
            while data := s.recv(1 << 16):
                s.sendall(data)
            return
        mib = int(path[1:] or 0)
        size = (mib << 20) + 2
        s.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\nok" % size)
        for _ in range(mib):
            s.sendall(PIECE)
        if b"connection: close" in head:
            return
def one(s):
    with s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            answer(s)
        except OSError:
            pass
PIECE = b"x" * (1 << 20)
with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()
"""
_HANDSHAKE = (
    "GET {path}/ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_FRAME = b"\x82\x84\0\0\0\0ping"


async def port_http(house: House) -> list[Figure]:
    """Small and large answers, through a port and from the same server here."""
    daemon = urlsplit(house.daemon.url).netloc
    async with house.client.lease("warm") as sandbox, _server_here() as here:
        await _serve_inside(sandbox)
        below = urlsplit(sandbox.port_url(_PORT)).path
        through, direct = _Line(daemon, below), _Line(f"127.0.0.1:{here}", "/")
        times = [(through.ask_ms(0), direct.ask_ms(0)) for _ in range(_REQUESTS)]
        speeds = [(_speed(through), _speed(direct)) for _ in range(_TIMES)]
    through_ms, direct_ms = (median([pair[side] for pair in times]) for side in (0, 1))
    speed, direct_speed = (median([pair[side] for pair in speeds]) for side in (0, 1))
    return [
        Figure(
            name="HTTP through a port: more than without us",
            value=through_ms - direct_ms,
            unit="ms",
            at_least=3,
            aim=1.5,
            against=f"{through_ms:.2f} ms against {direct_ms:.2f} ms",
        ),
        Figure(
            name="HTTP through a port: a large answer",
            value=speed,
            unit="MB/s",
            at_least=min(200.0, direct_speed / 2),
            aim=400,
            lower=False,
            against=f"without us {direct_speed:.0f} MB/s",
        ),
    ]


async def port_sockets(house: House) -> list[Figure]:
    """Hundreds of WebSockets opened and spoken through: how long the loop was ever blocked."""
    await house.wait_for_stock("warm", _SANDBOXES)
    daemon = urlsplit(house.daemon.url)
    async with AsyncExitStack() as stack:
        sandboxes = [
            await stack.enter_async_context(house.client.lease("warm")) for _ in range(_SANDBOXES)
        ]
        for sandbox in sandboxes:
            await _serve_inside(sandbox)
        async with asking(house.daemon.url) as asker:
            start = time.perf_counter()
            opened = [
                stack.enter_context(_open_socket(daemon.netloc, urlsplit(box.port_url(_PORT)).path))
                for box in sandboxes
                for _ in range(_SOCKETS)
            ]
            opened_s = time.perf_counter() - start
            for _ in range(_ROUNDS):
                await anyio.to_thread.run_sync(_round, opened)
            worst_ms, usual_ms = await answers_ms(asker)
    return [
        Figure(
            name=f"{len(opened)} WebSockets to ports: the longest that the loop was blocked",
            value=worst_ms,
            unit="ms",
            at_least=50,
            aim=20,
            against=f"an answer usually {usual_ms:.1f} ms; all open in {opened_s:.1f} s",
        )
    ]


class _Line:
    """A kept connection to a server, below a path."""

    def __init__(self, netloc: str, below: str) -> None:
        self._http = http.client.HTTPConnection(netloc, timeout=60)
        self._below = below

    def ask_ms(self, mib: int) -> float:
        """Ask for so many MiB; how long it took until all were here."""
        room = bytearray(1 << 18)
        start = time.perf_counter()
        self._http.request("GET", f"{self._below}{mib}")
        with self._http.getresponse() as answer:
            while answer.readinto(room):
                pass
        return (time.perf_counter() - start) * 1000


def _speed(line: _Line) -> float:
    return _MIB * 1048.576 / line.ask_ms(_MIB)


def _open_socket(netloc: str, path: str) -> socket.socket:
    host, _, port = netloc.rpartition(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(_HANDSHAKE.format(path=path.rstrip("/"), host=netloc).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += opened.recv(4096)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return opened


def _round(opened: list[socket.socket]) -> None:
    for each in opened:
        each.sendall(_FRAME)
    for each in opened:
        assert each.recv(100) == _FRAME


async def _serve_inside(sandbox: AsyncSandbox) -> None:
    """Start the server, and wait until it answers."""
    await sandbox.start(["python3", "-c", _SERVER, str(_PORT)], timeout_s=600)
    url = urlsplit(sandbox.port_url(_PORT))
    with anyio.fail_after(_READY_S):
        while True:
            line = http.client.HTTPConnection(url.netloc, timeout=10)
            line.request("GET", f"{url.path}0")
            if line.getresponse().status == 200:
                return
            await anyio.sleep(0.05)


@asynccontextmanager
async def _server_here() -> AsyncIterator[int]:
    """The same server on this machine, with what is `python3` inside; its port."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    command = [python, "-c", _SERVER, "0"]
    async with await anyio.open_process(command, stdout=PIPE, stderr=None) as server:
        assert server.stdout is not None
        try:
            yield int(await server.stdout.receive())
        finally:
            server.terminate()


ROWS = (
    Row(name="port", measure=port_http, warm=2),
    Row(name="ports", measure=port_sockets, warm=_SANDBOXES),
)
