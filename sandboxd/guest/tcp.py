"""The way to a guest by TCP: a connection on which both sides have proven that they know its token.

The token itself never travels. What follows on the connection is neither hidden nor sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxd.guest.streams.unix_stream import UnixStream

GUEST_PORT = 7031  # inside the sandbox, where nothing else of ours listens
_MAGIC = b"sandbox1"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_PROOF_S = 10.0  # from the first packet on
# A line that is cut without a word breaks after 30 s, or waits would last as long as their callers.
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class NotProven(Exception):
    """Who answers there does not know the token, or does not answer."""


def guest_token(secret: bytes, box_id: str) -> str:
    """The token of a box: derived, so that no daemon has to keep it."""
    return hmac.new(secret, b"guest " + box_id.encode(), hashlib.sha256).hexdigest()


async def connect_tcp_guest(host: str, port: int, token: str) -> ByteStream:
    """Connect, prove ourselves, and have the guest do so. Raises OSError, NotProven.

    host: an address, no name.
    """
    return await prove_guest(partial(_connect, host, port), token)


async def prove_guest(connect: Callable[[], Awaitable[ByteStream]], token: str) -> ByteStream:
    """The same over whatever leads to the guest. Raises what `connect` raises, and NotProven."""
    with anyio.move_on_after(_PROOF_S):
        stream = await connect()
        try:
            await _prove(stream, token.encode())
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            await anyio.aclose_forcefully(stream)
            raise NotProven("who listens in the guest's place hung up") from error
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return stream
    raise NotProven(f"nobody has proven to be the guest within {_PROOF_S:g} s")


async def _connect(host: str, port: int) -> ByteStream:
    """A stream that reads what came before a reset, which an early refusal of a body needs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)  # noqa: FBT003 - the standard library's word
        for level, option, value in _OPTIONS:
            connecting.setsockopt(level, option, value)
        try:
            connecting.connect((host, port))
        except BlockingIOError:
            await anyio.wait_writable(connecting)
        if error := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
    except BaseException:
        connecting.close()
        raise
    return UnixStream(connecting)


async def _prove(stream: ByteStream, token: bytes) -> None:
    ours = secrets.token_bytes(_NONCE_BYTES)
    await stream.send(_MAGIC + ours)
    # The guest says no more than this before we answer, so that nothing is left in the buffer.
    answer = await BufferedByteReceiveStream(stream).receive_exactly(_NONCE_BYTES + _PROOF_BYTES)
    nonces = ours + answer[:_NONCE_BYTES]
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(token, b"guest", nonces)):
        raise NotProven("who listens in the guest's place does not know its token")
    await stream.send(_proof(token, b"daemon", nonces))


def _proof(token: bytes, side: bytes, nonces: bytes) -> bytes:
    """What only who knows the token can say; side keeps one proof from being sent back as ours."""
    return hmac.digest(token, side + nonces, "sha256")
