"""Keeps an installation's policies in place for as long as it has pods."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from sandboxd.backends.kubernetes.network.policies import drop_policies, policies_of, put_policies
from sandboxd.backends.kubernetes.network.probing import NetworkProbe
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer, Refused
from sandboxd.errors import SandboxdError

_CLOSING_S = 10.0


@dataclass(slots=True)
class NetworkInPlace:
    """enforced: the cluster enforces policies. is_needed: there are pods that want them."""

    enforced: bool
    is_needed: bool = True


@asynccontextmanager
async def keep_policies(
    server: ApiServer, settings: KubernetesSettings, *, namespace: str
) -> AsyncIterator[NetworkInPlace]:
    """With the policies in place. On leaving they stay, unless nothing needs them.

    Raises `backend_unavailable`.
    """
    reached_from = list(settings.from_addresses)
    if not reached_from:
        url = server.access.api.configuration.host
        reached_from = await to_thread.run_sync(own_addresses, url)
    policies = policies_of(settings.tag, settings.installation, reached_from=reached_from)
    await put_policies(server, namespace, policies)
    enforced = settings.network_policy == "enforced"
    if settings.network_policy == "probe":
        enforced = await NetworkProbe(server, settings, namespace=namespace).is_enforced()
    network = NetworkInPlace(enforced)
    try:
        yield network
    finally:
        if not network.is_needed:
            with anyio.move_on_after(_CLOSING_S, shield=True), suppress(SandboxdError, Refused):
                await drop_policies(server, namespace, policies)


def own_addresses(server_url: str) -> list[str]:
    """Ours on the way to the API server, as pods see it; none where that cannot be told.

    Blocking: may look a name up. Sends nothing.
    """
    url = urlsplit(server_url)
    try:
        found = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as line:
            line.connect(address)
            own = str(line.getsockname()[0])
    except OSError:
        return []
    return [] if ipaddress.ip_address(own).is_loopback else [own]
