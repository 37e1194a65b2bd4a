"""Messages of Jupyter's protocol, to and from their signed parts.

Source: "Messaging in Jupyter", protocol 5.3. Who sends them runs in a sandbox and knows the key: a
good signature says that nobody else there wrote it, and nothing about its shape.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jupyter_client.session import DELIM, Session
from pydantic_core import from_json, to_json

from sandboxd.guest.kernels import Channel, Said

_SIGNED = 4  # header, parent, metadata, content
_MOST_HEAD = 64 << 10  # each but the content
_MOST_PATCHED = 256 << 10
_SMALL = 4 << 10
# What lists, objects and what is in them take as objects of ours, in bytes; and by how much all
# that may outgrow its text.
_WEIGHTS = {b"[": 64, b"{": 232, b":": 100, b",": 40, b'"': 30}
_WEIGHED = 4


class NoMessage(ValueError):
    """What came is no message of the protocol, or nobody signed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. parent: the header of what it answers, empty if nothing. seq: the guest's.

    readable: whether its content could be read; it is empty if not. exact: whether its parts as
    they came are JSON that anybody can read. raw: its content as it came.
    """

    channel: Channel
    seq: int
    header: Mapping[str, Any]
    parent: Mapping[str, Any]
    metadata: Mapping[str, Any]
    content: Mapping[str, Any]
    buffers: tuple[bytes, ...] = ()
    readable: bool = True
    exact: bool = True
    raw: bytes = b""

    @property
    def size(self) -> int:
        """Of its content, in bytes."""
        return len(self.raw)

    @property
    def cost(self) -> int:
        """Its size; more for one full of small values, each of which takes many times its bytes."""
        if self.size < _SMALL:
            return self.size
        values = sum(self.raw.count(mark) * weight for mark, weight in _WEIGHTS.items())
        return max(self.size, values // _WEIGHED)

    @property
    def kind(self) -> str:
        """Its `msg_type`."""
        return _text(self.header.get("msg_type"))

    @property
    def id(self) -> str:
        """Its own `msg_id`."""
        return _text(self.header.get("msg_id"))

    @property
    def sent_at(self) -> float | None:
        """When who wrote it says so, in Unix seconds; None where that is no time."""
        try:
            return datetime.fromisoformat(_text(self.header.get("date"))).timestamp()
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def parent_id(self) -> str:
        """The id of what it answers; empty if nothing."""
        return _text(self.parent.get("msg_id"))

    @property
    def parent_session(self) -> str:
        """The session of whom it answers; empty if nobody's."""
        return _text(self.parent.get("session"))

    def text(self, name: str) -> str:
        """A text of its content; empty where it is none."""
        return _text(self.content.get(name))


class Writer:
    """Signs and reads the messages of one kernel."""

    def __init__(self, key: str) -> None:
        self._session = Session(
            key=key.encode(), signature_scheme="hmac-sha256", username="sandboxd", check_pid=False
        )

    def parts(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        msg_id: str,
        parent: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[bytes]:
        """A message as it travels."""
        header = {**self._session.msg_header(kind), "msg_id": msg_id}
        message = self._session.msg(kind, content=dict(content), header=header)
        message["parent_header"] = dict(parent or {})
        message["metadata"] = dict(metadata or {})
        return [bytes(part) for part in self._session.serialize(message)]

    def sign(self, parts: Sequence[bytes]) -> list[bytes]:
        """Header, parent, metadata, content and buffers of somebody else's message, signed."""
        signature: bytes = self._session.sign(list(parts[:_SIGNED]))
        return [DELIM, signature, *parts]

    def read(self, said: Said) -> Message:
        """Raises NoMessage."""
        parts = said.parts
        try:
            start = parts.index(DELIM) + 1
        except ValueError:
            raise NoMessage("no delimiter") from None
        signed = parts[start + 1 : start + 1 + _SIGNED]
        if len(signed) < _SIGNED:
            raise NoMessage("too few parts")
        # Not `Session.deserialize`: it looks for dates in everything, which takes most of its time.
        if not hmac.compare_digest(self._session.sign(list(signed)), parts[start]):
            raise NoMessage("nobody signed it")
        if any(len(part) > _MOST_HEAD for part in signed[:-1]):
            raise NoMessage("a head is too large")
        heads = [_object(part) for part in signed[:-1]]
        try:
            (content, plain), readable = _object(signed[-1]), True
        except NoMessage:  # whoever waits for such an answer still learns that there was one
            content, plain, readable = {}, False, False
        return Message(
            channel=said.channel,
            seq=said.seq,
            header=heads[0][0],
            parent=heads[1][0],
            metadata=heads[2][0],
            content=content,
            buffers=parts[start + 1 + _SIGNED :],
            readable=readable,
            exact=plain and all(exact for _, exact in heads),
            raw=signed[-1],
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def written(value: Mapping[str, Any]) -> bytes:
    """A part of a message that anybody can read: what is no number is null."""
    return to_json(value, inf_nan_mode="null")


def _object(part: bytes) -> tuple[dict[str, Any], bool]:
    """A part, read, and whether it is JSON as it came."""
    try:
        value = from_json(part, allow_inf_nan=True)
        exact = b"NaN" not in part and b"Infinity" not in part
    except ValueError:
        if len(part) > _MOST_PATCHED:
            raise NoMessage("a part is not JSON") from None
        value, exact = _patched(part), False
    if not isinstance(value, dict):
        raise NoMessage("a part is no object")
    return value, exact


def _patched(part: bytes) -> Any:
    """What honest kernels write too, of names of files for instance: bytes that are no text, halves
    of characters. They become replacement characters.
    """
    try:
        value = json.loads(part.decode(errors="replace"))
        return from_json(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise NoMessage("a part is not JSON") from None
