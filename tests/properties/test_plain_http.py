"""The plain exchange says what h11 says, or leaves it to h11; however the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.wire import plain1
from sandboxd.wire.http1 import AsyncConnection, ConnectionLost, Headers

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-A:  b \r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nhi"
HINTED = b"HTTP/1.1 103 Early\r\n\r\n" + OK


class Cut:
    """A peer whose answer comes in the pieces given."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.sent = b""
        self.closed = False

    async def receive(self, max_bytes: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def aclose(self) -> None:
        self.closed = True


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(1 + place % len(data) for place in places)})
    return [data[a:b] for a, b in pairwise(borders)]


def outcome(pieces: list[bytes], *, limit: int = 100) -> tuple[int, Headers, bytes] | str:
    """Run an exchange to its end, without a loop: nothing in it ever waits."""
    connection = AsyncConnection(Cut(pieces))
    call = connection.exchange("POST", "/x?y=1", [(b"host", b"g")], b"{}", limit=limit)
    try:
        call.send(None)
    except StopIteration as end:
        answer: tuple[int, Headers, bytes] = end.value
        return answer
    except ConnectionLost as lost:
        return "lost" if lost.sent and connection.closed else "left open"
    return "it waited"


@pytest.mark.parametrize("answer", [OK, CHUNKED, CLOSING, TO_THE_END, HINTED])
@given(places=st.lists(st.integers(min_value=0), max_size=6))
def test_answer_is_read_whole_however_it_was_cut(answer: bytes, places: list[int]) -> None:
    told = outcome(cut(answer, places))
    assert isinstance(told, tuple)
    assert (told[0], told[2]) == (200, b"hi")


@pytest.mark.parametrize("answer", [OK, CHUNKED, CLOSING])
@given(data=st.data())
def test_answer_cut_short_is_lost(answer: bytes, data: st.DataObject) -> None:
    assert outcome([answer[: data.draw(st.integers(0, len(answer) - 1))]]) == "lost"


@pytest.mark.parametrize("answer", [OK, CHUNKED, CLOSING])
def test_answer_over_the_limit_is_lost(answer: bytes) -> None:
    assert outcome([answer], limit=1) == "lost"


def test_more_than_the_answer_is_lost() -> None:
    assert outcome([OK + b"HTTP/1.1 200 OK\r\n"]) == "lost"


@given(st.lists(st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 99 no", b"content-length: 0", b"a:b",
     b"content-length: 1", b" folded", b"bad name: x", b"Connection: close", b"nul: \0",
     b"x: \xff"],
), max_size=5))  # fmt: skip
def test_head_that_is_read_plainly_is_read_the_same_by_h11(lines: list[bytes]) -> None:
    head = b"\r\n".join(lines)
    plain = plain1.read_head(head)
    if plain is None:
        return
    judge = h11.Connection(h11.CLIENT)
    judge.send(h11.Request(method="GET", target="/", headers=[(b"host", b"g")]))
    judge.send(h11.EndOfMessage())
    judge.receive_data(head + b"\r\n\r\n")
    event = judge.next_event()
    assert isinstance(event, h11.Response)
    assert (event.status_code, list(event.headers)) == (plain.status, plain.headers)


@given(st.text(max_size=10), st.binary(max_size=10), st.binary(max_size=10), st.binary(max_size=9))
def test_request_that_is_written_plainly_is_one_request_to_h11(
    target: str, name: bytes, value: bytes, body: bytes
) -> None:
    written = plain1.write("POST", "/" + target, [(b"host", b"g"), (name, value)], body)
    if written is None:
        return
    judge = h11.Connection(h11.SERVER)
    judge.receive_data(written)
    request = judge.next_event()
    assert isinstance(request, h11.Request)
    assert request.target == b"/" + target.encode()
    if body:
        data = judge.next_event()
        assert isinstance(data, h11.Data)
        assert data.data == body
    assert isinstance(judge.next_event(), h11.EndOfMessage)
    assert judge.trailing_data[0] == b""


@pytest.mark.parametrize("target", ["/a b", "/a\r\nx: y", "/é", "a", "/a\0"])
def test_target_that_would_break_out_is_not_written(target: str) -> None:
    assert plain1.write("GET", target, [(b"host", b"g")], None) is None


def test_connection_is_fit_for_the_next_request() -> None:
    connection = AsyncConnection(Cut([OK, CHUNKED, OK]))
    for _ in range(3):
        with pytest.raises(StopIteration) as end:
            connection.exchange("GET", "/", [(b"host", b"g")], limit=9).send(None)
        assert end.value.value[2] == b"hi"
        assert connection.idle
