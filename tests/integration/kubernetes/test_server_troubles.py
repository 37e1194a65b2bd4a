"""An API server that is busy, away or no longer knows us: nothing is lost, and it comes back."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd.backends.kubernetes import KubernetesBackend
from sandboxd.backends.kubernetes.objects import pods_path, secrets_path
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode
from tests.support.cluster import TestCluster
from tests.support.cluster_boxes import (
    API_PORT,
    backend_on,
    kubeconfig_with,
    order,
    proxied_backend,
    run,
)
from tests.support.cluster_pods import NAMESPACE, Cluster, kill_first_process
from tests.support.engine_proxy import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes, pytest.mark.timeout(180)]


@pytest.mark.requirement("K8-08")
async def test_a_server_that_asks_for_patience_is_given_it(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        busy = proxy.fail(Fault("POST .*/pods", status=429, retry_after_s=1, times=3))
        began = time.monotonic()
        with anyio.fail_after(60):
            box = await backend.make(order())
        assert busy.seen == 3
        assert time.monotonic() - began > 3
        assert (await run(backend, box, "echo here")).exit_code == 0


@pytest.mark.requirement("K8-08")
async def test_a_command_costs_the_server_no_request(cluster: TestCluster, tmp_path: Path) -> None:
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        box = await backend.make(order())
        asked = proxy.fail(Fault(r"\A(?!GET .*watch=true)", times=1000))
        for _ in range(5):
            assert (await run(backend, box, "true")).exit_code == 0
        assert await backend.look(box) is None
        assert asked.seen == 0
        proxy.faults.clear()


async def test_a_watch_that_breaks_off_is_taken_up_again(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """Also from a place in history that the server no longer has."""
    gone = json.dumps({"kind": "Status", "code": 410, "reason": "Expired"})
    async with proxied_backend(cluster, tmp_path) as (backend, proxy):
        box = await backend.make(order())
        expired = proxy.fail(Fault("GET .*watch=true", status=410, words=gone, times=2))
        async with backend.watch() as deaths:
            proxy.cut()
            await eventually(lambda: expired.seen == 2, within_s=30)
            kill_first_process(str(box.details["uid"]))
            with anyio.fail_after(30):
                assert (await anext(deaths)).box_id == box.box_id


@pytest.mark.serial
# The library leaves a socket to the collector whose handshake the killed server cut.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_boxes_outlive_a_restart_of_the_server_and_their_deaths_are_told_after_it(
    cluster: TestCluster,
) -> None:
    async with backend_on(cluster) as backend:
        living, dying = await backend.make(order()), await backend.make(order())
        async with backend.watch() as deaths:
            cluster.end("kube-apiserver")
            try:
                assert (await run(backend, living, "echo on")).exit_code == 0
                kill_first_process(str(dying.details["uid"]))
                with pytest.raises(SandboxdError) as caught, anyio.fail_after(60):
                    await backend.make(order())
                assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
            finally:
                await anyio.to_thread.run_sync(cluster.start)
            with anyio.fail_after(60):
                assert (await anext(deaths)).box_id == dying.box_id
        assert await backend.look(living) is None
        with anyio.fail_after(60):
            assert await backend.look(await backend.make(order())) is None


@pytest.mark.slow
@pytest.mark.serial
async def test_boxes_outlive_a_kubelet_that_is_killed_and_go_once_it_is_back(
    cluster: TestCluster,
) -> None:
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        cluster.end("kubelet")
        try:
            assert (await run(backend, box, "echo on")).exit_code == 0
            with anyio.fail_after(30), pytest.raises(SandboxdError) as caught:
                await backend.dispose(box)
            assert "terminating" in caught.value.detail
        finally:
            await anyio.to_thread.run_sync(cluster.start)
        with anyio.fail_after(60):
            await backend.dispose(box)
        assert await backend.list_owned() == []


@pytest.mark.slow
async def test_credentials_that_were_rotated_are_read_again(
    cluster: TestCluster, tmp_path: Path
) -> None:
    server = Cluster(cluster)
    old, secret = _account(server, "tests-rotated")
    authority = cluster.directory / "etc" / "pki" / "ca.crt"
    address = f"https://127.0.0.1:{API_PORT}"
    file = kubeconfig_with(
        tmp_path / "k", server=address, user=json.dumps({"token": old}), authority=authority
    )
    async with backend_on(cluster, kubeconfig=file) as backend:
        assert await backend.list_owned() == []
        server.delete(secrets_path(NAMESPACE, secret))
        new = json.dumps({"token": cluster.token()})
        told = await refusal_of(backend, within_s=60)  # the server remembers a token for a while
        assert "renew the credentials" in told
        kubeconfig_with(file, server=address, user=new, authority=authority)
        assert await backend.list_owned() == []
        with anyio.fail_after(60):
            assert await backend.look(await backend.make(order())) is None


@pytest.mark.requirement("K8-09")
async def test_a_pod_that_hangs_in_its_end_is_told_in_time_and_counts_until_it_is_gone(
    cluster: TestCluster,
) -> None:
    server = Cluster(cluster)
    async with backend_on(cluster) as backend:
        box = await backend.make(order())
        path = pods_path(NAMESPACE, str(box.details["pod"]))
        _finalizers(server, path, ["sandboxd.test/hold"])
        try:
            with anyio.fail_after(30), pytest.raises(SandboxdError) as caught:
                await backend.dispose(box)
            assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
            assert "terminating" in caught.value.detail
            assert [owned.box_id for owned in await backend.list_owned()] == [box.box_id]
        finally:
            _finalizers(server, path, [])
        with anyio.fail_after(30):
            await backend.dispose(box)
        assert await backend.list_owned() == []


async def eventually(check: Callable[[], bool], *, within_s: float) -> None:
    with anyio.fail_after(within_s):
        while not check():  # noqa: ASYNC110 - a proxy tells nobody
            await anyio.sleep(0.05)


async def refusal_of(backend: KubernetesBackend, *, within_s: float) -> str:
    """What it says once it can no longer list its boxes."""
    with anyio.fail_after(within_s):
        while True:
            try:
                await backend.list_owned()
            except SandboxdError as error:
                return error.detail
            await anyio.sleep(0.5)


def _finalizers(server: Cluster, path: str, names: list[str]) -> None:
    """Whoever holds an object back from going."""
    server.change(path, lambda body: body["metadata"].update(finalizers=names))


def _account(server: Cluster, name: str) -> tuple[str, str]:
    """A token of a new account that may do everything, and the secret that it lies in."""
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    server.create(accounts, {"metadata": {"name": name}})
    server.create(
        bindings,
        {
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        },
    )
    for _ in range(100):
        account: dict[str, Any] = server.get(f"{accounts}/{name}")
        for each in account.get("secrets") or ():
            found = server.get(secrets_path(NAMESPACE, each["name"]))
            return b64decode(found["data"]["token"]).decode(), str(each["name"])
        time.sleep(0.1)  # nobody tells of it
    raise AssertionError("the account has no token")
