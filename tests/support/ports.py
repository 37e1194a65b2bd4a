"""Words for checks of ports: a server inside that does as its paths say, and callers of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.daemon import RunningDaemon

PROGRAM = Path(__file__).with_name("port_program.py")
CONFIG = """
[server]
api_keys = [{name = "alice", key = "alice-secret-key"}, {name = "bob", key = "bob-secret-key"}]

[templates.python]
image = "host"
pool = {ready = 2, max = 20}

[templates.trusted]
image = "host"
trusted_ports = true
pool = {ready = 0, max = 4}
"""
PORT = 8000
ALICE = {"Authorization": "Bearer alice-secret-key"}
MIB = 1 << 20


@contextmanager
def serving(
    http: httpx.Client, template: str = "python", *, then_gone: bool = False, **terms: Any
) -> Iterator[str]:
    """The path of a sandbox whose server listens. then_gone: its daemon releases it at its end."""
    order = {"template": template, "files": {"/tmp/server.py": {"text": PROGRAM.read_text()}}}
    sandbox = f"/v1/sandboxes/{http.post('/v1/sandboxes', json={**order, **terms}).json()['id']}"
    try:
        cmd = ["python3", "/tmp/server.py", str(PORT)]
        http.post(f"{sandbox}/execs", json={"cmd": cmd, "detach": True}).raise_for_status()
        until(lambda: http.get(f"{sandbox}/ports/{PORT}/").status_code == 200)
        yield sandbox
    finally:
        if not then_gone:
            http.delete(sandbox)


def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    due = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < due, "it never came true"
        time.sleep(0.02)


def told(response: httpx.Response) -> dict[str, Any]:
    """What the server inside heard."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def problem(response: httpx.Response) -> tuple[int, str, dict[str, Any]]:
    body = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, body["code"], body


def token(http: httpx.Client, sandbox: str, rights: str = "use") -> str:
    """The address of a sandbox with a token in it."""
    minted: str = http.post(f"{sandbox}/tokens", json={"rights": rights}).json()["token"]
    return f"/s/{minted}"


@contextmanager
def websocket(daemon: RunningDaemon, path: str, **more: Any) -> Iterator[ClientConnection]:
    url = daemon.url.replace("http", "ws", 1) + path
    more = {"compression": None, "max_size": None, "additional_headers": ALICE, **more}
    with connect(url, **more) as opened:
        yield opened


def refused_status(daemon: RunningDaemon, path: str, **more: Any) -> tuple[int, bytes]:
    """Status and body of the answer to a handshake that is refused."""
    with pytest.raises(InvalidStatus) as caught, websocket(daemon, path, **more):
        pass
    return caught.value.response.status_code, bytes(caught.value.response.body or b"")


@contextmanager
def raw(daemon: RunningDaemon, *lines: str) -> Iterator[socket.socket]:
    """A connection on which a head was sent."""
    parts = urlsplit(daemon.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        head = [*lines, f"Host: {parts.netloc}", "Authorization: Bearer alice-secret-key", "", ""]
        connection.sendall("\r\n".join(head).encode())
        yield connection
