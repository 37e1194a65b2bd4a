"""The daemon that is measured: a child process, with pools for each row's need."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx

from sandboxd.demo.embedded import EmbeddedDaemon, embedded_daemon
from sandboxd_client import AsyncSandboxd

_POLL_S = 0.05
_CONFIG = """\
[limits]
max_sandboxes = 2000
[log]
level = "error"
[templates.warm]
image = "{image}"
resources = {{memory_mb = 256, pids = 128, disk_mb = 256}}
pool = {{ready = {warm}, max = 200, starting = {starting}, queue = 1000}}
[templates.cold]
image = "{image}"
resources = {{memory_mb = 256, pids = 128, disk_mb = 256}}
pool = {{ready = 0, max = 200, starting = {starting}, queue = 1000}}
[templates.kernels]
image = "{image}"
resources = {{memory_mb = 2048, pids = 1024, disk_mb = 256}}
pool = {{ready = {kernels}, max = 200, starting = {starting}, queue = 1000}}
kernels = ["python3"]
[templates.idle]
image = "{image}"
resources = {{memory_mb = 64, pids = 64, disk_mb = 64}}
pool = {{ready = {idle}, max = 600, starting = {starting}, queue = 1000}}
"""
# Python and the packages of whoever runs the bench, for servers that are written with them.
_TOOLS = """\
[templates.tools]
image = "{image}"
resources = {{memory_mb = 512, pids = 128, disk_mb = 256}}
pool = {{ready = {tools}, max = 200, starting = {starting}, queue = 1000}}
mounts = [
  {{source = "{python}", target = "/opt/python"}},
  {{source = "{packages}", target = "/opt/packages"}},
  {{source = "{bench}", target = "/opt/bench"}},
]
[templates.tools.mcp_servers.stdio]
command = ["/opt/python/bin/python3", "/opt/bench/mcp_server.py", "stdio"]
env = {{PYTHONPATH = "/opt/packages"}}
prestart = true
[templates.tools.mcp_servers.web]
command = ["/opt/python/bin/python3", "/opt/bench/mcp_server.py", "9402"]
env = {{PYTHONPATH = "/opt/packages"}}
port = 9402
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What boxes are made by, and of.

    starting: boxes in the making at once, in each pool. env: variables that lead the daemon there.
    table: the backend's own, as TOML.
    """

    backend: str = "local"
    image: str = "host"
    starting: int = max(2, os.cpu_count() or 1)
    env: Mapping[str, str] = field(default_factory=dict)
    table: str = ""


@dataclass(frozen=True, slots=True)
class House:
    """A running daemon and a client to it."""

    daemon: EmbeddedDaemon
    client: AsyncSandboxd

    async def wait_for_stock(
        self, template: str, ready: int, *, within_s: float = 60, every_s: float = _POLL_S
    ) -> None:
        """Wait until the pool has so many in stock and nothing else to do. Raises TimeoutError.

        every_s: between two looks, which cost both sides a few milliseconds each.
        """
        with anyio.fail_after(within_s):
            while True:
                pools = {pool.template: pool for pool in await self.client.pools()}
                pool = pools[template]
                if pool.ready >= ready and not pool.making and not pool.disposing:
                    return
                await anyio.sleep(every_s)

    async def adjust(self, template: str, **settings: int | bool) -> None:
        """Change a pool's settings while it works."""
        async with httpx.AsyncClient(base_url=self.daemon.url) as http:
            (await http.patch(f"/v1/pools/{template}", json=settings)).raise_for_status()


@asynccontextmanager
async def open_house(
    ground: Ground, *, warm: int = 0, idle: int = 0, kernels: int = 0, tools: int = 0
) -> AsyncIterator[House]:
    """A daemon with this much stock wanted, and a client; both end with the block."""
    stock = {"warm": warm, "idle": idle, "kernels": kernels}
    config = ground.table + _CONFIG.format(image=ground.image, starting=ground.starting, **stock)
    if tools:
        config += _TOOLS.format(
            image=ground.image,
            starting=ground.starting,
            tools=tools,
            python=sys.base_prefix,
            packages=sysconfig.get_path("purelib"),
            bench=Path(__file__).parent,
        )
    async with (
        embedded_daemon(config, backend=ground.backend, env=ground.env) as daemon,
        AsyncSandboxd(url=daemon.url) as client,
    ):
        yield House(daemon, client)
