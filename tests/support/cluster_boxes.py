"""Boxes on a cluster of the tests' own, which ask for next to nothing of its node."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from sandboxd.backends.kubernetes import (
    KubernetesBackend,
    KubernetesSettings,
    open_kubernetes,
)
from sandboxd.backends.protocol import BoxOrder, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Network, PodOptions, Resources
from tests.support.cluster import GUEST_IMAGE, POD_IMAGE, TestCluster
from tests.support.engine_proxy import EngineProxy, server_proxy

API_PORT = 6443


def spec(image: str = POD_IMAGE, *, pod: PodOptions | None = None, **resources: Any) -> BoxSpec:
    """A small box."""
    amounts = {"cpu": 0.5, "memory_mb": 128, "pids": 64, "disk_mb": 64, **resources}
    return BoxSpec(
        image=image,
        network=Network(kind="internet"),
        resources=Resources(**amounts),
        pod=pod or PodOptions(),
    )


def order(wanted: BoxSpec | None = None) -> BoxOrder:
    """An order for it, under a fresh id."""
    labels = {"installation": "tests", "pool": "checks", "made_at": "0"}
    return BoxOrder(box_id=new_id("box"), spec=wanted or spec(), labels=labels)


@asynccontextmanager
async def backend_on(cluster: TestCluster, **settings: Any) -> AsyncIterator[KubernetesBackend]:
    """A backend of an installation of its own; at the end all its boxes are gone."""
    chosen: dict[str, Any] = {
        "installation": new_id("t")[2:14],
        "guest_image": GUEST_IMAGE,
        "kubeconfig": cluster.kubeconfig,
        "guest": "address",
        "network_policy": "none",
        "cpu_request": 0.01,
        "memory_request": 0.1,
        "secret": b"of these tests alone",
        **settings,
    }
    async with open_kubernetes(KubernetesSettings(**chosen)) as backend:
        try:
            yield backend
        finally:
            with anyio.fail_after(90, shield=True):
                await clear(backend)


@asynccontextmanager
async def proxied_backend(
    cluster: TestCluster, folder: Path, **settings: Any
) -> AsyncIterator[tuple[KubernetesBackend, EngineProxy]]:
    """The same behind a proxy, which sees its calls to the API server and can make them fail."""
    async with server_proxy(API_PORT, client_context(cluster)) as proxy:
        file = kubeconfig_with(folder / "k", server=proxy.host, user="{}")
        async with backend_on(cluster, kubeconfig=file, **settings) as backend:
            yield backend, proxy


async def clear(backend: KubernetesBackend) -> None:
    """Dispose of every box, and stay at it as the disposer does."""
    async with anyio.create_task_group() as tasks:
        for box in await backend.list_owned():
            tasks.start_soon(_dispose, backend, box.box_id)
    assert await backend.list_owned() == []


async def _dispose(backend: KubernetesBackend, box_id: str) -> None:
    while True:
        try:
            await backend.dispose_remains(box_id)
        except SandboxdError:
            await anyio.sleep(0.2)
        else:
            return


async def run(backend: KubernetesBackend, box: BoxRef, script: str) -> ExecRecord:
    """Run a script to its end. Claims the box under one name."""
    guest = Guest(lambda: backend.connect(box))
    try:
        await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=600))
        command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", script), timeout_s=60)
        return await guest.run(command, wait=True)
    finally:
        await guest.aclose()


def client_context(cluster: TestCluster) -> ssl.SSLContext:
    """The credentials of somebody who may do everything."""
    keys = Path(cluster.directory / "etc" / "pki")
    context = ssl.create_default_context(cafile=keys / "ca.crt")
    context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
    return context


def kubeconfig_with(path: Path, *, server: str, user: str, authority: Path | None = None) -> Path:
    """A file of credentials. user: what stands in it of the user, as JSON."""
    trusted = f", certificate-authority: {authority}" if authority else ""
    path.write_text(
        "apiVersion: v1\nkind: Config\n"
        f'clusters: [{{name: k, cluster: {{server: "{server}"{trusted}}}}}]\n'
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\ncurrent-context: c\n"
    )
    return path
