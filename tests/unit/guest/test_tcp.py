"""The proof on a TCP line to a guest: who does not know the token is not believed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio import TypedAttributeProvider
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxd.guest.tcp import NotProven, connect_tcp_guest, guest_token

pytestmark = pytest.mark.anyio

TOKEN = "0123456789abcdef"
_HELLO_BYTES = 40


async def dial(serve: Callable[[SocketStream], Awaitable[None]]) -> bytes:
    """Connect to a peer that acts as told; what it says after the proofs. Raises NotProven."""
    said: bytes | NotProven
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        try:
            with anyio.fail_after(5):
                stream = await connect_tcp_guest("127.0.0.1", port_of(listener), TOKEN)
                async with stream:
                    said = await stream.receive()
        except NotProven as error:
            said = error
        tasks.cancel_scope.cancel()
    if isinstance(said, NotProven):
        raise said
    return said


def port_of(listener: TypedAttributeProvider) -> int:
    port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    return port


def proof(token: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.new(token.encode(), side + nonces, hashlib.sha256).digest()


async def test_both_sides_prove_the_token_and_it_does_not_travel() -> None:
    seen = bytearray()

    async def guest(stream: SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            hello = await reader.receive_exactly(_HELLO_BYTES)
            nonces = hello[8:] + b"g" * 32
            await stream.send(b"g" * 32 + proof(TOKEN, b"guest", nonces))
            theirs = await reader.receive_exactly(32)
            seen.extend(hello + theirs)
            await stream.send(b"yes" if theirs == proof(TOKEN, b"daemon", nonces) else b"no")

    assert await dial(guest) == b"yes"
    assert TOKEN.encode() not in seen


async def test_who_sends_our_own_words_back_is_not_believed() -> None:
    async def echo(stream: SocketStream) -> None:
        async with stream:
            hello = await BufferedByteReceiveStream(stream).receive_exactly(_HELLO_BYTES)
            await stream.send(hello[8:] * 2)

    with pytest.raises(NotProven, match="does not know"):
        await dial(echo)


async def test_who_knows_another_boxs_token_is_not_believed() -> None:
    async def stranger(stream: SocketStream) -> None:
        async with stream:
            hello = await BufferedByteReceiveStream(stream).receive_exactly(_HELLO_BYTES)
            nonces = hello[8:] + b"g" * 32
            await stream.send(b"g" * 32 + proof("another", b"guest", nonces))

    with pytest.raises(NotProven, match="does not know"):
        await dial(stranger)


async def test_who_hangs_up_is_no_guest_and_nobody_is_an_error_of_the_system() -> None:
    async def shy(stream: SocketStream) -> None:
        await stream.aclose()

    with pytest.raises(NotProven, match="hung up"):
        await dial(shy)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = port_of(listener)
    await listener.aclose()
    with pytest.raises(ConnectionRefusedError), anyio.fail_after(5):
        await connect_tcp_guest("127.0.0.1", port, TOKEN)


def test_each_box_and_each_installation_has_a_token_of_its_own() -> None:
    tokens = {guest_token(secret, box) for secret in (b"a", b"b") for box in ("one", "two")}
    assert len(tokens) == 4
