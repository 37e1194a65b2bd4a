"""The way to a guest through the API server, for a daemon outside the cluster's network.

Lines are bounded: each is one to the server, and another from there to the pod's node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.backends.kubernetes.talking.server import ApiServer
from sandboxd.backends.kubernetes.talking.tunnel import TunnelRefused, open_tunnel
from sandboxd.guest.tcp import GUEST_PORT, prove_guest

_OPENING = 32  # at once; each is a TLS handshake in the loop's own thread
_OPEN_S = 20.0


class ForwardReach:
    """Guests that are reached by the port-forward of their pods."""

    # What a node forwards comes from inside the pod, as far as the guest can see.
    arguments: tuple[str, ...] = ("--allow-local-peers",)
    keeps_lines = False  # each open line is the API server's to carry, and its node's
    mend = "is its node up, and may our account create `pods/portforward`?"

    def __init__(
        self, server: ApiServer, *, namespace: str, token_of: Callable[[str], str]
    ) -> None:
        """token_of: of a box by its id."""
        self._server = server
        self._namespace = namespace
        self._token_of = token_of
        self._opening = anyio.Semaphore(_OPENING)

    async def dial(self, record: BoxRecord) -> ByteStream:
        """See the protocol."""
        path = f"{pods_path(self._namespace, record.name)}/portforward"
        return await prove_guest(partial(self._open, path), self._token_of(record.box_id))

    async def _open(self, path: str) -> ByteStream:
        async with self._opening:
            access = self._server.access
            try:
                with anyio.fail_after(_OPEN_S):
                    return await open_tunnel(access, path, GUEST_PORT)
            except TunnelRefused as refusal:
                if refusal.status != 401:
                    raise
            await self._server.renew(access)
            with anyio.fail_after(_OPEN_S):
                return await open_tunnel(self._server.access, path, GUEST_PORT)
