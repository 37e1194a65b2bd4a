"""Two hundred rollouts at once, each with a server that counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.support.daemon import run_daemon
from tests.support.mcp import COUNTER, HEADERS, answer_in, call

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(600)]

_LEASES, _CALLS, _AT_ONCE = 200, 20, 16
_CONFIG = """
[templates.python]
image = "host"
resources = {memory_mb = 64, pids = 32, disk_mb = 64}
pool = {ready = 0, max = 220, starting = 2, queue = 1000}
"""


def zombies_below(pid: int) -> list[int]:
    """The children of one process that have ended and that it did not reap."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[:2] == ["Z", str(pid)]:
            found.append(int(entry.name))
    return found


def counters() -> int:
    """How many such servers run on this machine."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += b"python3\0counter.py" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
    return found


async def test_every_counter_is_right_and_nothing_is_left(tmp_path: Path) -> None:
    before = counters()
    totals: list[str] = []
    declared = {"counter": {"command": ["python3", "counter.py"]}}
    body: dict[str, Any] = {
        "template": "python",
        "files": {"counter.py": {"text": COUNTER}},
        "mcp_servers": declared,
        "wait_timeout_s": 500,
    }
    with run_daemon(tmp_path, backend="local", config=_CONFIG) as daemon:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        leased: list[str] = []
        async with httpx.AsyncClient(base_url=daemon.url, timeout=560) as http:

            async def lease() -> None:
                async with limiter:
                    told = (await http.post("/v1/sandboxes", json=body)).json()
                    path = f"/v1/sandboxes/{told['id']}"
                    first = await http.post(
                        f"{path}/mcp/counter", json=call("add"), headers=HEADERS
                    )
                    assert "result" in answer_in(first), first.text
                    leased.append(path)

            async def count(path: str) -> None:
                told = ""
                for _ in range(_CALLS - 1):
                    async with limiter:
                        answer = await http.post(
                            f"{path}/mcp/counter", json=call("add"), headers=HEADERS
                        )
                    told = answer_in(answer)["result"]["content"][0]["text"]
                totals.append(told)

            async def release(path: str) -> None:
                async with limiter:
                    ended = await http.delete(path, params={"wait_s": 60})
                assert ended.json()["state"] == "ended"

            async with anyio.create_task_group() as tasks:
                for _ in range(_LEASES):
                    tasks.start_soon(lease)
            assert counters() - before == _LEASES
            async with anyio.create_task_group() as tasks:
                for path in leased:
                    tasks.start_soon(count, path)
            assert totals == [str(_CALLS)] * _LEASES
            async with anyio.create_task_group() as tasks:
                for path in leased:
                    tasks.start_soon(release, path)
            assert counters() == before
        assert zombies_below(daemon.pid) == []
