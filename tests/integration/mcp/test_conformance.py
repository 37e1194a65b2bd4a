"""The conformance suite of the protocol: what it says of a server through us is what it says of the
same server directly.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.contract.speaker import eventually
from tests.support.daemon import run_daemon
from tests.support.mcp_tools import node, node_modules, script

pytestmark = pytest.mark.timeout(400)

_INSIDE = "/opt/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
# With keys: without any the daemon itself refuses foreign hosts, which the suite asks of servers.
_CONFIG = """
[server]
api_keys = [{{name = "suite", key = "suite-secret-key"}}]

[templates.python]
image = "host"
resources = {{memory_mb = 1024, pids = 256}}
pool = {{ready = 1, max = 4}}
mounts = [{{source = "{modules}", target = "/opt/npm/node_modules"}}]

[templates.python.mcp_servers.everything]
command = ["/opt/npm/node_modules/node/bin/node", "{inside}", "streamableHttp"]
env = {{PORT = "3901"}}
port = 3901
"""
_LINE = re.compile(r"^\s*([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)


def verdicts(url: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Of each scenario, how many checks passed and failed."""
    folder.mkdir()
    done = subprocess.run(
        [node(), script("conformance"), "server", "--url", url],
        cwd=folder, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    found = {name: (passed, failed) for _, name, passed, failed in _LINE.findall(done.stdout)}
    assert len(found) > 10, done.stdout[-3000:] + done.stderr[-1000:]
    return found


@contextmanager
def everything_here() -> Iterator[str]:
    """The server on this machine itself."""
    with closing(socket.create_server(("127.0.0.1", 0))) as reserved:
        port = reserved.getsockname()[1]
    environ = {**os.environ, "PORT": str(port)}
    command = [node(), str(script("server-everything")), "streamableHttp"]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:

        def listens() -> bool:
            with closing(socket.socket()) as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, within_s=20, what="it listens")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(10)


def test_conformance_is_the_same_through_us_as_directly(tmp_path: Path) -> None:
    assert sys.platform == "linux"
    with everything_here() as url:
        direct = verdicts(url, tmp_path / "direct")
    config = _CONFIG.format(modules=node_modules(), inside=_INSIDE)
    place = tmp_path / "daemon"
    place.mkdir()
    with run_daemon(place, backend="local", config=config) as daemon:
        headers = {"authorization": "Bearer suite-secret-key"}
        with httpx.Client(base_url=daemon.url, headers=headers, timeout=60) as http:
            told = http.post("/v1/sandboxes", json={"template": "python"}).json()
            token = http.post(f"/v1/sandboxes/{told['id']}/tokens", json={}).json()
        through = verdicts(f"{token['url']}/mcp/everything", tmp_path / "through")
    assert through == direct
