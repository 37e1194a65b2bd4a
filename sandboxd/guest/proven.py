"""The way to a guest: its socket, believed only after the kernel has named its owner."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

import anyio
from anyio.abc import ByteStream, SocketAttribute

from sandboxd.guest.streams.unix_stream import connect_unix
from sandboxd.wire.http1 import AsyncConnection, ConnectionLost
from sandboxd.wire.streams import AnyioStream

_HELLO_BYTES = 65536
_OUR_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


class NotTheGuest(Exception):
    """Another process than the box's first one listens there."""

    def __init__(self, peer_pid: int) -> None:
        super().__init__(f"process {peer_pid} listens in the guest's place")
        self.peer_pid = peer_pid


async def connect_guest(path: Path, pid: int) -> ByteStream:
    """Connect, and check that the process which listens is `pid`.

    Nothing is sent before that. Raises OSError if nobody listens, NotTheGuest.
    """
    stream = await connect_unix(path)
    raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    peer_pid, _, _ = struct.unpack("3i", credentials)
    if peer_pid != pid:
        await anyio.aclose_forcefully(stream)
        raise NotTheGuest(peer_pid)
    return stream


def is_our_own(error: OSError, shared: Path) -> bool:
    """Whether a connection failed for a reason that nobody inside the box can bring about.

    shared: the directory of the socket, which only the machine can take away: a cleaner of `/run`,
    a session that ended.
    """
    return error.errno in _OUR_SHORTAGES or (error.errno == errno.ENOENT and not shared.is_dir())


async def says_hello(path: Path, pid: int) -> bool:
    """Whether the guest answers by now. Raises NotTheGuest."""
    try:
        stream = await connect_guest(path, pid)
    except OSError:
        return False
    connection = AsyncConnection(AnyioStream(stream))
    try:
        status, _, _ = await connection.exchange(
            "GET", "/v1/hello", [(b"host", b"guest")], limit=_HELLO_BYTES
        )
    except ConnectionLost:
        return False
    finally:
        await connection.aclose()
    return status == 200
