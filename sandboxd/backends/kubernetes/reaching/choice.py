"""Which way to guests: as asked for, else by whether we run in the cluster ourselves."""

from __future__ import annotations

from collections.abc import Callable

from sandboxd.backends.kubernetes.reaching.by_address import AddressReach
from sandboxd.backends.kubernetes.reaching.by_forward import ForwardReach
from sandboxd.backends.kubernetes.reaching.way import Reach
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer


def choose_reach(
    server: ApiServer,
    settings: KubernetesSettings,
    *,
    namespace: str,
    token_of: Callable[[str], str],
) -> Reach:
    """The way to guests. token_of: of a box by its id."""
    way = settings.guest
    if way == "auto":
        way = "address" if server.access.inside else "forward"
    if way == "address":
        return AddressReach(token_of)
    return ForwardReach(server, namespace=namespace, token_of=token_of)
