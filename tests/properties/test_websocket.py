"""Our WebSocket client codec against a server's of another house, on input split anyhow."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, CloseCode, Frame
from websockets.frames import Opcode as TheirOpcode
from websockets.protocol import SERVER, Protocol

from sandboxd.wire.websocket import (
    Message,
    MessageDecoder,
    MessageError,
    Opcode,
    accept_of,
    encode,
    encode_close,
    masked,
    new_key,
    read_close,
)

payloads = st.binary(max_size=300) | st.sampled_from([125, 126, 65535, 65536, 70000]).map(bytes)
controls = st.tuples(st.sampled_from([Opcode.PING, Opcode.PONG]), st.binary(max_size=125)).map(
    lambda pair: Message(*pair)
)
messages = payloads.map(lambda data: Message(Opcode.BINARY, data)) | controls


def from_server(message: Message, *, cuts: list[int] | None = None) -> bytes:
    """As a server sends it, in fragments that begin at `cuts`."""
    places = [0, *sorted(cut for cut in cuts or [] if cut <= len(message.payload))]
    ends = [*places[1:], len(message.payload)]
    frames = b""
    for number, (start, end) in enumerate(zip(places, ends, strict=True)):
        opcode = message.opcode if number == 0 else Opcode.CONTINUATION
        final = number == len(places) - 1
        frame = Frame(TheirOpcode(opcode), message.payload[start:end], fin=final)
        frames += frame.serialize(mask=False)
    return frames


fragmented = st.tuples(messages, st.lists(st.integers(0, 70_000), max_size=3))


@given(st.lists(fragmented, max_size=6), st.lists(st.integers(0, 200_000), max_size=6))
def test_what_a_server_sends_comes_out_whole_however_it_was_split(
    sent: list[tuple[Message, list[int]]], splits: list[int]
) -> None:
    wire = b""
    for message, cuts in sent:
        wire += from_server(message, cuts=cuts if message.opcode is Opcode.BINARY else None)
    decoder, got = MessageDecoder(), []
    places = sorted({0, len(wire), *(place for place in splits if place < len(wire))})
    for start, end in pairwise(places):
        got += decoder.feed(wire[start:end])
    assert got == [message for message, _ in sent]


@given(st.lists(messages, max_size=8))
def test_a_server_of_another_house_reads_what_we_send(sent: list[Message]) -> None:
    server = Protocol(SERVER, max_size=1 << 20)
    for message in sent:
        server.receive_data(encode(*message))
    server.receive_data(encode_close(1000, "done"))
    *got, close = server.events_received()
    assert server.parser_exc is None
    assert all(isinstance(frame, Frame) for frame in got)
    read = [Message(Opcode(f.opcode), bytes(f.data)) for f in got if isinstance(f, Frame)]
    assert read == sent
    assert isinstance(close, Frame)
    assert Close.parse(close.data) == Close(CloseCode.NORMAL_CLOSURE, "done")


@given(st.binary(max_size=1000), st.binary(min_size=4, max_size=4))
def test_a_mask_laid_twice_is_gone(data: bytes, mask: bytes) -> None:
    once = masked(data, mask)
    assert once == bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
    assert masked(once, mask) == data


@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoder_otherwise_than_by_its_error(data: bytes) -> None:
    decoder = MessageDecoder(limit=100)
    try:
        for message in decoder.feed(data):
            assert len(message.payload) <= 100
            if message.opcode is Opcode.CLOSE:
                read_close(message.payload)
    except MessageError:
        pass


@pytest.mark.parametrize(
    "wire",
    [
        b"\xc2\x00",  # an extension that nobody agreed on
        b"\x82\x80abcd",  # masked
        b"\x83\x00",  # a kind that is not one
        b"\x09\x00",  # half a ping
        b"\x89\x7e\x00\x7e",  # a long ping
        b"\x80\x00",  # the rest of nothing
        b"\x02\x00\x82\x00",  # a message inside another
        b"\x82\x7f" + (1 << 40).to_bytes(8, "big"),  # over the bound
        b"\x02\x7e\x00\x60" + bytes(96) + b"\x80\x05hello",  # over it by its fragments
    ],
)
def test_what_breaks_the_protocol_is_refused(wire: bytes) -> None:
    with pytest.raises(MessageError):
        MessageDecoder(limit=100).feed(wire)


def test_a_message_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    with pytest.raises(MessageError):
        MessageDecoder(limit=10).feed(b"\x82\x0b")


@given(st.integers(1000, 4999), st.text(max_size=200))
def test_a_close_message_is_short_and_reads_back(code: int, reason: str) -> None:
    frame = encode_close(code, reason)
    payload = masked(frame[6:], frame[2:6])
    assert len(payload) <= 125
    told, words = read_close(payload)
    assert told == code
    assert reason.startswith(words)


def test_a_close_message_may_be_empty_but_not_half_a_code() -> None:
    assert read_close(b"") == (1005, "")
    with pytest.raises(MessageError):
        read_close(b"\x03")


def test_the_handshake_is_the_standard_s() -> None:
    assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert new_key() != new_key()
