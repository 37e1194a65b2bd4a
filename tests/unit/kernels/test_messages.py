"""Messages of the protocol: read only if they are signed, and whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from sandboxd.guest.kernels import Channel, Said
from sandboxd.kernels.messages import Message, NoMessage, Writer, written

WRITER = Writer("key")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def said(parts: list[bytes] | tuple[bytes, ...]) -> Said:
    return Said(1, Channel.IOPUB, tuple(parts))


def signed(*texts: bytes, key: str = "key") -> Said:
    return said([b"topic", *Writer(key).sign(texts)])


def read(content: bytes, *, header: bytes = b'{"msg_id": "m", "msg_type": "stream"}') -> Message:
    return WRITER.read(signed(header, b'{"msg_id": "p"}', b"{}", content))


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_written_is_read_and_jupyters_own_session_reads_it_too(
    content: dict[str, Any],
) -> None:
    parts = WRITER.parts("execute_request", content, msg_id="cell.1", metadata={"a": 1})
    message = WRITER.read(said(parts))
    assert (message.kind, message.id, message.parent_id) == ("execute_request", "cell.1", "")
    assert (message.content, message.metadata, message.readable) == (content, {"a": 1}, True)
    session = Session(key=b"key", signature_scheme="hmac-sha256")
    found = session.deserialize(session.feed_identities(parts)[1])
    assert (found["content"], found["msg_id"]) == (content, "cell.1")


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
def test_what_somebody_changed_on_the_way_is_nobodys(at: int) -> None:
    parts = [b"topic", *WRITER.parts("status", {"execution_state": "idle"}, msg_id="m")]
    parts[at] = parts[at].replace(b"}", b" }") if at > 2 else b"0" * len(parts[at])
    with pytest.raises(NoMessage, match="nobody signed it"):
        WRITER.read(said(parts))


def test_another_key_signs_for_nobody() -> None:
    parts = Writer("other").parts("status", {"execution_state": "idle"}, msg_id="m")
    with pytest.raises(NoMessage):
        WRITER.read(said(parts))


@given(st.lists(st.binary(max_size=40) | st.just(b"<IDS|MSG>"), max_size=9))
def test_frames_of_any_kind_are_refused_by_that_name(frames: list[bytes]) -> None:
    with pytest.raises(NoMessage):
        WRITER.read(said(frames))


@given(st.tuples(*(st.binary(max_size=60) for _ in range(4))))
def test_whatever_is_signed_is_read_or_refused_by_that_name(parts: tuple[bytes, ...]) -> None:
    try:
        message = WRITER.read(signed(*parts))
    except NoMessage:
        return
    for value in (message.kind, message.id, message.parent_id, message.text("x")):
        assert isinstance(value, str)


@given(JSON, JSON)
def test_ids_that_are_no_texts_are_none(msg_id: Any, kind: Any) -> None:
    header = json.dumps({"msg_id": msg_id, "msg_type": kind, "date": msg_id}).encode()
    message = read(b"{}", header=header)
    assert message.id == (msg_id if isinstance(msg_id, str) else "")
    assert message.kind == (kind if isinstance(kind, str) else "")
    assert message.sent_at is None or isinstance(message.sent_at, float)


def test_bytes_that_are_no_text_and_halves_of_characters_are_replaced() -> None:
    assert read(b'{"text": "caf\xe9"}').text("text") == "caf\N{REPLACEMENT CHARACTER}"
    assert read(rb'{"text": "\ud800-\ud83d\ude00"}').text("text") == "?-\N{GRINNING FACE}"
    assert read(b'{"x": NaN}').readable


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"1", b"null", b'{"a": ' * 5000 + b"1" + b"}" * 5000],
    ids=["nothing", "cut", "list", "number", "null", "deep"],
)
def test_an_answer_whose_content_is_unreadable_is_an_answer_all_the_same(content: bytes) -> None:
    message = read(content)
    assert (message.content, message.readable, message.parent_id) == ({}, False, "p")


def test_a_message_full_of_small_values_costs_what_they_take() -> None:
    text = read(b'{"text": "' + b"[{" * 50_000 + b'"}')
    assert text.size <= text.cost
    values = read(b'{"a": [' + b"{}," * 50_000 + b"1]}")
    assert values.cost > 20 * values.size // 4
    small = read(b'{"a": [{}, {}, {}]}')
    assert small.cost == small.size


@pytest.mark.parametrize(
    ("content", "readable", "again"),
    [
        (b'{"a": "plain"}', True, None),
        (b'{"a": [NaN, -Infinity]}', True, b'{"a":[null,null]}'),
        (b'{"a": "caf\xe9"}', True, '{"a":"caf\ufffd"}'.encode()),
        (b'{"a": 1} trailing', False, b"{}"),
        (b'}, "channel": "shell", "x": {', False, b"{}"),
    ],
)
def test_what_is_no_exact_json_is_known_and_can_be_written_anew(
    content: bytes, readable: bool, again: bytes | None
) -> None:
    message = read(content)
    assert (message.readable, message.exact) == (readable, again is None)
    if again is not None:
        assert written(message.content) == again
