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
from pydantic_core import from_json

from sandboxd.guest.kernels import Channel, Said

_SIGNED = 4  # header, parent, metadata, content
_MOST_HEAD = 64 << 10  # each but the content
_MOST_PATCHED = 256 << 10


class NoMessage(ValueError):
    """What came is no message of the protocol, or nobody signed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. parent: the header of what it answers, empty if nothing. seq: the guest's.

    readable: whether its content could be read; it is empty if not. size: of its content, in bytes.
    """

    channel: Channel
    seq: int
    header: Mapping[str, Any]
    parent: Mapping[str, Any]
    metadata: Mapping[str, Any]
    content: Mapping[str, Any]
    buffers: tuple[bytes, ...] = ()
    readable: bool = True
    size: int = 0

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
        header, parent, metadata = (_object(part) for part in signed[:-1])
        try:
            content, readable = _object(signed[-1]), True
        except NoMessage:  # whoever waits for such an answer still learns that there was one
            content, readable = {}, False
        return Message(
            channel=said.channel,
            seq=said.seq,
            header=header,
            parent=parent,
            metadata=metadata,
            content=content,
            buffers=parts[start + 1 + _SIGNED :],
            readable=readable,
            size=len(signed[-1]),
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(part: bytes) -> dict[str, Any]:
    try:
        value = from_json(part, allow_inf_nan=True)
    except ValueError:
        if len(part) > _MOST_PATCHED:
            raise NoMessage("a part is not JSON") from None
        value = _patched(part)
    if not isinstance(value, dict):
        raise NoMessage("a part is no object")
    return value


def _patched(part: bytes) -> Any:
    """What honest kernels write too, of names of files for instance: bytes that are no text, halves
    of characters. They become replacement characters.
    """
    try:
        value = json.loads(part.decode(errors="replace"))
        return from_json(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise NoMessage("a part is not JSON") from None
