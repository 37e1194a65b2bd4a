"""The way to a guest at its pod's address, for a daemon that is in the cluster's network."""

from __future__ import annotations

from collections.abc import Callable

from anyio.abc import ByteStream

from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.guest.tcp import GUEST_PORT, connect_tcp_guest


class AddressReach:
    """Guests that are dialled directly."""

    arguments: tuple[str, ...] = ()
    # For a descriptor each, whoever leases a box need not wait for its guest to prove itself.
    keeps_lines = True
    mend = (
        "is this machine in the cluster's network, and does no policy keep it out? "
        '`backend.kubernetes.guest = "forward"` goes through the API server'
    )

    def __init__(self, token_of: Callable[[str], str]) -> None:
        """token_of: of a box by its id."""
        self._token_of = token_of

    async def dial(self, record: BoxRecord) -> ByteStream:
        """See the protocol."""
        if not record.address:
            raise ConnectionRefusedError("it has no address")
        return await connect_tcp_guest(record.address, GUEST_PORT, self._token_of(record.box_id))
