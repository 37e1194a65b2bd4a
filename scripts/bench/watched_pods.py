"""What a thousand watched pods cost a daemon. No kubelet runs them: no scheduler takes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from sandboxd.backends.kubernetes.objects import LEASE, annotations_of, labels_of, pods_path
from sandboxd.backends.kubernetes.talking.credentials import read_access
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, open_server
from sandboxd.backends.protocol import BoxOrder
from sandboxd.model.template import BoxSpec
from scripts.bench.figures import Figure
from scripts.bench.house import House
from scripts.bench.processes import cpu_s, rss_mb

_LOAD = "sandboxd/bench"  # the label of what is made here
_PODS = 1000
_AT_ONCE = 16
_REST_S = 10.0
_SETTLE_S = 2.0  # for the last changes to be heard


async def watched(house: House) -> list[Figure]:
    """Memory and processor time, as pods come, as each changes once, and while none does.

    All within the minute after which a daemon removes what it finds and knows nothing of.
    """
    pid, installation = house.daemon.pid, house.daemon.installation
    server = await open_server(lambda: read_access(None, ""), threads=_AT_ONCE)
    path = pods_path(server.access.namespace)
    try:
        before_mb = rss_mb(pid)
        came_s = await _cost_s(pid, partial(_each, partial(_create, server, path, installation)))
        memory_mb = rss_mb(pid) - before_mb
        changed_s = await _cost_s(pid, partial(_each, partial(_change, server, path)))
        rested_s = await _cost_s(pid, partial(anyio.sleep, _REST_S))
    finally:
        with anyio.CancelScope(shield=True):
            wanted = f"{_LOAD}=true"
            await server.call(
                "DELETE", path, query={"labelSelector": wanted, "gracePeriodSeconds": 0}
            )
            await server.aclose()
    told = f"{came_s:.2f} s as they come"
    rest = 100 * rested_s / (_REST_S + _SETTLE_S)
    return [
        Figure(name="1,000 watched pods, memory", value=memory_mb, unit="MB", at_least=50, aim=10),
        Figure(
            name="1,000 watched pods change, processor", value=changed_s, unit="s", at_least=3,
            aim=1, against=told,
        ),
        Figure(name="1,000 watched pods at rest", value=rest, unit="% cpu", at_least=5, aim=1),
    ]  # fmt: skip


async def _cost_s(pid: int, act: Callable[[], Awaitable[None]]) -> float:
    before = cpu_s([pid])
    await act()
    await anyio.sleep(_SETTLE_S)
    return cpu_s([pid]) - before


async def _each(act: Callable[[int], Awaitable[object]]) -> None:
    waiting = iter(range(_PODS))

    async def worker() -> None:
        for number in waiting:
            await act(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(worker)


async def _create(server: ApiServer, path: str, installation: str, number: int) -> Json:
    box_id = f"box-bench-{number}"
    order = BoxOrder(box_id=box_id, spec=BoxSpec(image="i:1"), labels={"pool": "warm"})
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"sandboxd-bench-{number}",
            "labels": {**labels_of(installation, box_id), _LOAD: "true"},
            "annotations": annotations_of(order),
        },
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [{"name": "sandbox", "image": "i:1"}],
        },
    }
    return await server.create(path, body)


async def _change(server: ApiServer, path: str, number: int) -> Json:
    body = {"metadata": {"annotations": {LEASE: f"sbx_{number}"}}}
    return await server.patch(f"{path}/sandboxd-bench-{number}", body)
