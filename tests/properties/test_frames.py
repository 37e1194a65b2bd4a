"""Frames survive any cut of the bytes between the two ends, and nonsense is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.wire.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode,
    encode_piece,
    split_piece,
)

frames = st.lists(st.builds(Frame, st.sampled_from(FrameKind), st.binary(max_size=300)))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(borders)]


@given(frames, st.lists(st.integers(min_value=0)))
def test_frames_come_out_as_they_went_in_however_they_were_cut(
    sent: list[Frame], places: list[int]
) -> None:
    decoder, found = FrameDecoder(), []
    for piece in cut(b"".join(encode(*frame) for frame in sent), places):
        found += decoder.feed(piece)
    assert found == sent
    assert not decoder.pending


@given(frames, st.binary(min_size=1, max_size=20))
def test_unfinished_frame_is_pending(sent: list[Frame], payload: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(b"".join(encode(*frame) for frame in sent) + encode(FrameKind.STDIN, payload)[:-1])
    assert decoder.pending


@given(st.binary())
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    decoder = FrameDecoder(limit=64)
    try:
        found = decoder.feed(data)
    except FrameError:
        return
    assert sum(5 + len(frame.payload) for frame in found) <= len(data)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary())
def test_pieces_keep_number_offset_and_bytes(seq: int, offset: int, data: bytes) -> None:
    framed = encode_piece(FrameKind.STDOUT, seq=seq, offset=offset, data=data)
    [frame] = FrameDecoder().feed(framed)
    assert split_piece(frame.payload) == (seq, offset, data)


def test_frame_over_the_bound_is_refused_before_its_payload_comes() -> None:
    head = bytes([FrameKind.STDOUT]) + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="over"):
        FrameDecoder().feed(head)
    with pytest.raises(FrameError, match="over"):
        encode(FrameKind.STDIN, bytes(MAX_PAYLOAD_BYTES + 1))


def test_frames_before_a_bad_one_are_not_repeated_after_it() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError, match="kind 9"):
        decoder.feed(encode(FrameKind.STDIN, b"x") + bytes([9, 0, 0, 0, 0]))


def test_piece_without_a_head_is_refused() -> None:
    with pytest.raises(FrameError, match="no head"):
        split_piece(b"short")
