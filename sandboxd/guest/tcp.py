"""The way to a guest by TCP: a connection on which both sides have proven that they know its token.

The token itself never travels. What follows on the connection is neither hidden nor sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

GUEST_PORT = 7031  # inside the sandbox, where nothing else of ours listens
_MAGIC = b"sandbox1"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_PROOF_S = 10.0


class NotProven(Exception):
    """Who answers there does not know the token, or does not answer."""


def guest_token(secret: bytes, box_id: str) -> str:
    """The token of a box: derived, so that no daemon has to keep it."""
    return hmac.new(secret, b"guest " + box_id.encode(), hashlib.sha256).hexdigest()


async def connect_tcp_guest(host: str, port: int, token: str) -> ByteStream:
    """Connect, prove ourselves, and have the guest do so. Raises OSError, NotProven."""
    stream = await anyio.connect_tcp(host, port)
    try:
        with anyio.fail_after(_PROOF_S):
            await _prove(stream, token.encode())
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
        await anyio.aclose_forcefully(stream)
        raise NotProven("who listens in the guest's place hung up") from error
    except TimeoutError as error:
        await anyio.aclose_forcefully(stream)
        raise NotProven("who listens in the guest's place says nothing") from error
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return stream


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
