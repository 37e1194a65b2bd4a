"""Connections to a guest: kept for a while, tried again once, closed when they must be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxd.backends.fake.pipes import stream_pair
from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost, Line
from sandboxd.wire.codes import ErrorCode

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
_CUT = b""

Answers = list[list[bytes]]


class Peer:
    """Answers each connection by script: one entry of a list per request, empty to hang up."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.opened = 0
        self.closed = 0
        self.requests: list[bytes] = []

    async def serve(self, stream: ByteStream) -> None:
        answers = self._answers.pop(0)
        try:
            for answer in answers:
                self.requests.append(await stream.receive())
                if answer == _CUT:
                    break
                await stream.send(answer)
            else:
                await stream.receive()
        except anyio.EndOfStream:
            pass
        finally:
            self.closed += 1
            await anyio.aclose_forcefully(stream)


async def talk(answers: Answers, use: Callable[[Line, Peer], Awaitable[None]]) -> Peer:
    """Run `use` on a line to such a peer, and close it."""
    peer = Peer(answers)
    with anyio.fail_after(1000):
        async with anyio.create_task_group() as group:

            async def connect() -> ByteStream:
                peer.opened += 1
                ours, theirs = stream_pair()
                group.start_soon(peer.serve, theirs)
                return ours

            line = Line(connect)
            await use(line, peer)
            await line.aclose()
    return peer


async def test_connection_is_kept_and_used_again() -> None:
    async def use(line: Line, peer: Peer) -> None:
        for _ in range(3):
            assert (await line.call("GET", "/v1/hello")).body == b"{}"
        assert peer.opened == 1

    peer = await talk([[_OK] * 3], use)
    assert peer.closed == 1


async def test_connection_idle_for_long_is_not_used_again() -> None:
    async def use(line: Line, peer: Peer) -> None:
        await line.call("GET", "/")
        await anyio.sleep(31)
        await line.call("GET", "/")
        assert (peer.opened, peer.closed) == (2, 1)

    await talk([[_OK], [_OK]], use)


async def test_at_most_four_are_kept() -> None:
    async def use(line: Line, peer: Peer) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(line.call, "GET", "/")
        await anyio.wait_all_tasks_blocked()
        assert peer.opened == 5
        assert peer.closed == 1

    await talk([[_OK]] * 5, use)


async def test_kept_connection_that_died_is_replaced_once() -> None:
    async def use(line: Line, peer: Peer) -> None:
        await line.call("GET", "/")
        assert (await line.call("POST", "/v1/execs", b"{}")).status == 200
        assert peer.opened == 2

    await talk([[_OK, _CUT], [_OK]], use)


async def test_fresh_connection_that_dies_is_not_tried_again() -> None:
    async def use(line: Line, peer: Peer) -> None:
        with pytest.raises(GuestLost) as lost:
            await line.call("POST", "/v1/execs", b"{}")
        assert lost.value.sent
        assert peer.opened == 1

    await talk([[_CUT]], use)


async def test_call_that_must_not_be_repeated_has_a_connection_of_its_own() -> None:
    async def use(line: Line, peer: Peer) -> None:
        await line.call("GET", "/")
        with pytest.raises(GuestLost):
            await line.call("POST", "/v1/execs/e/signal", b"{}", repeatable=False)
        assert peer.opened == 2

    await talk([[_OK], [_CUT]], use)


@pytest.mark.parametrize(
    "answer",
    [
        b"NOT HTTP AT ALL\r\n\r\n",
        b"HTTP/1.1 500 x\r\ncontent-length: 4\r\n\r\noops",
        b'HTTP/1.1 422 x\r\ncontent-length: 17\r\n\r\n{"code": "weird"}',
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + b"x" * 200,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no http", "no json", "unknown code", "too long", "bad chunk"],
)
async def test_nonsense_is_lost(answer: bytes) -> None:
    async def use(line: Line, peer: Peer) -> None:
        with pytest.raises(GuestLost) as lost:
            await line.call("GET", "/", limit=100)
        assert lost.value.sent

    await talk([[answer]], use)


async def test_refusal_is_an_error_and_keeps_the_connection() -> None:
    refusal = b'{"code": "conflict", "detail": "taken"}'
    answer = b"HTTP/1.1 409 x\r\ncontent-length: %d\r\n\r\n%s" % (len(refusal), refusal)

    async def use(line: Line, peer: Peer) -> None:
        with pytest.raises(SandboxdError) as refused:
            await line.call("GET", "/", limit=10)
        assert refused.value.code is ErrorCode.CONFLICT
        await line.call("GET", "/")
        assert peer.opened == 1

    await talk([[answer, _OK]], use)


async def test_connection_that_cannot_be_had_certainly_had_no_effect() -> None:
    async def refuse() -> ByteStream:
        raise ConnectionRefusedError

    with pytest.raises(GuestLost) as lost:
        await Line(refuse).call("POST", "/v1/execs", b"{}")
    assert not lost.value.sent


async def test_cancelled_call_closes_its_connection() -> None:
    async def use(line: Line, peer: Peer) -> None:
        with anyio.move_on_after(1):
            await line.call("GET", "/")
        await anyio.wait_all_tasks_blocked()
        assert (peer.opened, peer.closed) == (1, 1)

    class Silent(Peer):
        pass

    peer = Silent([[]])
    async with anyio.create_task_group() as group:

        async def connect() -> ByteStream:
            peer.opened += 1
            ours, theirs = stream_pair()
            group.start_soon(swallow, theirs)
            return ours

        async def swallow(stream: ByteStream) -> None:
            try:
                while True:
                    await stream.receive()
            except anyio.EndOfStream:
                peer.closed += 1
            finally:
                await anyio.aclose_forcefully(stream)

        await use(Line(connect), peer)
