"""Frames of Jupyter's WebSocket, against Jupyter Server's own reading and writing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)

from sandboxd.guest.kernels import Channel
from sandboxd.kernels.jupyter.frames import NoFrame, read_frame, write_frame

WORDS = st.text(max_size=20)
OBJECTS = st.dictionaries(WORDS, st.none() | st.integers() | WORDS | st.lists(WORDS), max_size=4)
BUFFERS = st.lists(st.binary(max_size=50), max_size=4)
CHANNELS = st.sampled_from([Channel.SHELL, Channel.STDIN, Channel.CONTROL])


def header(**more: Any) -> dict[str, Any]:
    return {"msg_id": "m1", "msg_type": "comm_msg", "session": "s1", **more}


def parts(*objects: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in objects)


@given(CHANNELS, OBJECTS, OBJECTS, OBJECTS, BUFFERS)
def test_what_jupyter_writes_is_read_part_by_part(
    channel: Channel,
    parent: dict[str, Any],
    metadata: dict[str, Any],
    content: dict[str, Any],
    buffers: list[bytes],
) -> None:
    name = channel.name.lower()
    expected = [header(), parent, metadata, content]
    raw = [*parts(*expected), *buffers]
    message = {
        "channel": name, "header": header(), "parent_header": parent, "metadata": metadata,
        "content": content, "buffers": buffers,
    }  # fmt: skip
    orders = [
        read_frame(serialize_msg_to_ws_v1(raw, name), v1=True),
        read_frame(serialize_binary_message(message), v1=False),
    ]
    if not buffers:
        orders.append(read_frame(json.dumps(message), v1=False))
    for order in orders:
        assert (order.channel, order.kind) == (channel, "comm_msg")
        assert (order.id, order.session) == ("m1", "s1")
        assert [json.loads(part) for part in order.parts[:4]] == expected
        assert list(order.parts[4:]) == buffers


@given(OBJECTS, OBJECTS, OBJECTS, BUFFERS)
def test_what_is_written_is_read_by_jupyter(
    parent: dict[str, Any],
    metadata: dict[str, Any],
    content: dict[str, Any],
    buffers: list[bytes],
) -> None:
    raw = [*parts(header(), parent, metadata, content), *buffers]
    whole = write_frame(Channel.IOPUB, header(), raw, v1=True)
    assert isinstance(whole, bytes)
    assert deserialize_msg_from_ws_v1(whole) == ("iopub", raw)
    frame = write_frame(Channel.IOPUB, header(), raw, v1=False)
    if buffers:
        assert isinstance(frame, bytes)
        said = deserialize_binary_message(frame)
        assert [bytes(each) for each in said["buffers"]] == buffers
    else:
        assert isinstance(frame, str)
        said = json.loads(frame)
        assert said["buffers"] == []
    assert (said["channel"], said["msg_id"], said["msg_type"]) == ("iopub", "m1", "comm_msg")
    assert (said["parent_header"], said["metadata"], said["content"]) == (
        parent, metadata, content,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "channel"),
    [
        ("execute_request", Channel.SHELL), ("input_reply", Channel.STDIN),
        ("shutdown_request", Channel.CONTROL), ("interrupt_request", Channel.CONTROL),
    ],
)  # fmt: skip
def test_a_message_without_a_channel_goes_where_its_kind_belongs(
    kind: str, channel: Channel
) -> None:
    frame = json.dumps({"header": header(msg_type=kind)})
    assert read_frame(frame, v1=False).channel is channel


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_message_or_refused(data: bytes, v1: bool) -> None:
    with pytest.raises(NoFrame):
        read_frame(data, v1=v1)


@given(st.text(max_size=200))
def test_any_text_is_a_message_or_refused(text: str) -> None:
    for v1 in (False, True):
        with pytest.raises(NoFrame):
            read_frame(text, v1=v1)


@pytest.mark.parametrize("v1", [True, False])
def test_a_frame_that_would_take_long_to_read_is_refused_unread(v1: bool) -> None:
    content = json.dumps({"a": [[] for _ in range(40_000)]}).encode()
    texts = (json.dumps(header()).encode(), b"{}", b"{}", content)
    frame = write_frame(Channel.SHELL, header(), texts, v1=v1)
    with pytest.raises(NoFrame, match="values"):
        read_frame(frame, v1=v1)
    text = json.dumps({"code": "[{,}]" * 100_000}).encode()
    frame = write_frame(Channel.SHELL, header(), (*texts[:3], text, b"[" * 100_000), v1=v1)
    assert read_frame(frame, v1=v1).kind == "comm_msg"


@pytest.mark.parametrize("name", ["msg_id", "msg_type", "session"])
def test_names_that_are_remembered_are_short(name: str) -> None:
    frame = json.dumps({"header": header(**{name: "x" * 256}), "channel": "shell"})
    with pytest.raises(NoFrame, match="longer"):
        read_frame(frame, v1=False)
