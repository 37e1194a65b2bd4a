"""Jupyter's messages as frames of a WebSocket, and back. Pure.

Source: "WebSocket kernel wire protocols" of Jupyter Server. By default a message is JSON text, and
with buffers binary; in `v1.kernel.websocket.jupyter.org` it is its parts, as a kernel has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any

from pydantic_core import to_json

from sandboxd.guest.kernels import Channel
from sandboxd.wire.json_values import has_more_values

V1 = "v1.kernel.websocket.jupyter.org"

_MOST_PARTS = 256
_MOST_VALUES = 32_768  # of a frame: reading them holds up everybody else
_MOST_NAME = 255  # of ids and types
_PARTS = 4  # header, parent, metadata, content
_NUMBER, _OFFSET = Struct(">I"), Struct("<Q")
_NAMES = {each.name.lower(): each for each in (Channel.SHELL, Channel.STDIN, Channel.CONTROL)}
# Clients that have a queue for each channel leave its name out.
_ELSEWHERE = {
    "input_reply": Channel.STDIN,
    "shutdown_request": Channel.CONTROL,
    "interrupt_request": Channel.CONTROL,
    "debug_request": Channel.CONTROL,
}


class NoFrame(ValueError):
    """What came is no message for a kernel."""


@dataclass(frozen=True, slots=True)
class Order:
    """A message for a kernel. parts: header, parent, metadata, content as JSON, and buffers."""

    channel: Channel
    kind: str
    id: str
    session: str
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.parts))


def read_frame(data: str | bytes, *, v1: bool) -> Order:
    """The message in a frame that a client sent. Raises NoFrame."""
    try:
        if v1:
            if isinstance(data, str):
                raise NoFrame("frames of that protocol are binary")
            return _read_v1(data)
        text, buffers = (data, ()) if isinstance(data, str) else _split(data)
        return _read_object(_read_json(text), buffers)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, NoFrame) else NoFrame("a frame is not JSON") from error


def _read_json(text: str | bytes) -> Any:
    if has_more_values(text.encode() if isinstance(text, str) else text, _MOST_VALUES):
        raise NoFrame(f"a frame has more than {_MOST_VALUES} values")
    return json.loads(text)


def _read_object(said: Any, buffers: Sequence[bytes]) -> Order:
    if not isinstance(said, dict):
        raise NoFrame("a frame is no object")
    parts = [said.get(name) or {} for name in ("header", "parent_header", "metadata", "content")]
    if not all(isinstance(part, dict) for part in parts):
        raise NoFrame("a part of a message is no object")
    texts = (json.dumps(part).encode() for part in parts)
    return _order(said.get("channel"), parts[0], (*texts, *buffers))


def _read_v1(data: bytes) -> Order:
    channel, *parts = _cut(data)
    if len(parts) < _PARTS:
        raise NoFrame("a message has too few parts")
    header, *others = map(_read_json, parts[:_PARTS])
    if not all(isinstance(part, dict) for part in (header, *others)):
        raise NoFrame("a part of a message is no object")
    return _order(channel.decode("utf-8", "replace"), header, tuple(parts))


def _cut(data: bytes) -> list[bytes]:
    """The channel and the parts of a frame of V1: offsets of each and of the end come first."""
    count = int.from_bytes(data[: _OFFSET.size], "little")
    if not 2 <= count <= _MOST_PARTS or len(data) < _OFFSET.size * (count + 1):
        raise NoFrame("a frame's offsets are not there")
    offsets = [_OFFSET.unpack_from(data, _OFFSET.size * (i + 1))[0] for i in range(count)]
    return _between(data, offsets)


def _split(data: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The JSON and the buffers of a binary frame of the default protocol."""
    count = int.from_bytes(data[: _NUMBER.size], "big")
    if not 1 <= count <= _MOST_PARTS or len(data) < _NUMBER.size * (count + 1):
        raise NoFrame("a frame's offsets are not there")
    offsets = [_NUMBER.unpack_from(data, _NUMBER.size * (i + 1))[0] for i in range(count)]
    text, *buffers = _between(data, [*offsets, len(data)])
    return text, tuple(buffers)


def _between(data: bytes, offsets: list[int]) -> list[bytes]:
    if offsets != sorted(offsets) or offsets[-1] > len(data):
        raise NoFrame("a frame's offsets lead outside")
    return [data[start:end] for start, end in pairwise(offsets)]


def _order(channel: Any, header: Mapping[str, Any], parts: tuple[bytes, ...]) -> Order:
    kind, msg_id, session = (header.get(name) for name in ("msg_type", "msg_id", "session"))
    if not isinstance(kind, str) or not isinstance(msg_id, str) or not msg_id:
        raise NoFrame("a header has no msg_id or no msg_type")
    session = session if isinstance(session, str) else ""
    if max(map(len, (kind, msg_id, session))) > _MOST_NAME:
        raise NoFrame(f"an id or a type is longer than {_MOST_NAME} characters")
    if channel is None:
        found: Channel | None = _ELSEWHERE.get(kind, Channel.SHELL)
    else:
        found = _NAMES.get(channel) if isinstance(channel, str) else None
    if found is None:
        raise NoFrame("messages go to shell, stdin or control")
    return Order(found, kind, msg_id, session, parts)


def write_frame(
    channel: Channel, header: Mapping[str, Any], parts: Sequence[bytes], *, v1: bool
) -> str | bytes:
    """The frame for a message. header: the first part, read."""
    name = channel.name.lower()
    if v1:
        return _write_v1(name.encode(), parts)
    head, parent, metadata, content, *buffers = parts
    text = b"".join(
        (
            b'{"channel":"', name.encode(),
            b'","msg_id":', to_json(header.get("msg_id")),
            b',"msg_type":', to_json(header.get("msg_type")),
            b',"header":', head, b',"parent_header":', parent,
            b',"metadata":', metadata, b',"content":', content, b',"buffers":[]}',
        )
    )  # fmt: skip
    return _write_buffers(text, buffers) if buffers else text.decode()


def _write_v1(channel: bytes, parts: Sequence[bytes]) -> bytes:
    pieces = (channel, *parts)
    at = _OFFSET.size * (len(pieces) + 2)
    offsets = [at]
    for piece in pieces:
        at += len(piece)
        offsets.append(at)
    return b"".join((*map(_OFFSET.pack, (len(offsets), *offsets)), *pieces))


def _write_buffers(text: bytes, buffers: Sequence[bytes]) -> bytes:
    pieces = (text, *buffers)
    at = _NUMBER.size * (len(pieces) + 1)
    offsets: list[int] = []
    for piece in pieces:
        offsets.append(at)
        at += len(piece)
    return b"".join((*map(_NUMBER.pack, (len(pieces), *offsets)), *pieces))


def status(state: str, *, msg_id: str, date: str) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Header and parts of a `status` that a kernel cannot tell itself, like `dead`."""
    header = {
        "msg_id": msg_id,
        "msg_type": "status",
        "username": "sandboxd",
        "session": "sandboxd",
        "date": date,
        "version": "5.3",
    }
    return header, (to_json(header), b"{}", b"{}", to_json({"execution_state": state}))
