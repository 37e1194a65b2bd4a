"""The rights that the role gives are those that a life of the backend uses: each, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.kubernetes.doctor import _RIGHTS
from tests.contract.speaker import eventually
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import backend_on, order, proxied_backend
from tests.support.cluster_pods import kill_first_process
from tests.support.engine_proxy import EngineProxy

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(240)]

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OBJECT = re.compile(
    r"/apis?/(?:(?P<group>[a-z][a-z0-9.]+)/)?v1/namespaces/[^/]+/(?P<kind>[a-z]+)"
    r"(?:/(?P<name>[^/?]+)(?:/(?P<part>[a-z]+))?)?(?:\?(?P<query>.*))?\Z"
)
# What anybody may ask of a cluster, or what nothing is lost without.
_ASKED_BY_ALL = re.compile(r"GET /version|GET /apis/node\.k8s\.io/v1/runtimeclasses")

Right = tuple[str, str, str]


def right_of(call: str) -> Right:
    """The group, the kind and the verb that a call needs."""
    method, path = call.split(" ", 1)
    found = _OBJECT.match(path)
    assert found is not None, call
    kind = "/".join(filter(None, (found["kind"], found["part"])))
    if method != "GET":
        return found["group"] or "", kind, _VERBS[method]
    watches = "watch=true" in (found["query"] or "").lower()
    return found["group"] or "", kind, "get" if found["name"] else "watch" if watches else "list"


@pytest.mark.requirement("OP-03")
async def test_every_right_of_the_role_is_used_and_no_other_is(
    cluster: TestCluster, tmp_path: Path
) -> None:
    settings = {"installation": "0f1e2d3c4b5a"}
    async with (
        proxied_backend(cluster, tmp_path, **settings, network_policy="probe") as (backend, proxy),
        # A daemon that finds the policies of another.
        backend_on(cluster, kubeconfig=tmp_path / "k", **settings),
    ):
        box = await backend.make(order())
        assert backend.deeds is not None
        backend.deeds.note(box, lease_id="sbx-1", run_id="", group_id="")
        await anyio.to_thread.run_sync(until_patched, proxy)
        async with backend.watch() as deaths:
            kill_first_process(str(box.details["uid"]))
            with anyio.fail_after(60):
                await anext(deaths)
    used = {right_of(call) for call in proxy.made if not _ASKED_BY_ALL.match(call)}
    assert used == rights(_RIGHTS)


def until_patched(proxy: EngineProxy) -> None:
    """Wait for a first PATCH. Blocks."""
    eventually(
        lambda: any(call.startswith("PATCH ") for call in list(proxy.made)),
        within_s=30,
        what="the pod is told whose it is",
    )


def rights(table: tuple[tuple[str, str, tuple[str, ...]], ...]) -> set[Right]:
    """A table of them, one by one."""
    return {(group, kind, verb) for group, kind, verbs in table for verb in verbs}
