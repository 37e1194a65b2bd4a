"""Who speaks with a server, as the server's side sees it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

from sandboxd.mcp.messages import Message, RequestId

# What a client must have declared to be sent these.
_NEEDED = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


class Caller(Protocol):
    """One client. capabilities, info: as it declared them."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it can do for a server."""
        ...

    @property
    def info(self) -> Mapping[str, Any]:
        """Its name and version."""
        ...

    def heard(self, message: Message, about: RequestId | None) -> None:
        """Take what is for it. about: the id of its request that this answers or belongs to.
        Never waits, never raises: whoever reads too slowly is cut off.
        """
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a caller's that is on its way. number: the id that its server knows it by."""

    number: int
    caller: Caller
    request: Message
    progress_token: RequestId | None
    began_at: float = field(default_factory=anyio.current_time)

    @property
    def request_id(self) -> RequestId:
        """The id that its caller gave it."""
        request_id: RequestId = self.request["id"]
        return request_id


def numbers() -> Iterator[int]:
    """Ids for one daemon's requests: whole numbers, for there are servers that know no others, and
    not those of an earlier daemon, whose answers may still come.
    """
    return itertools.count(secrets.randbelow(1 << 20) << 32)


def can_take(caller: Caller, request: Message) -> bool:
    """Whether a server's request may be sent to it."""
    needed = _NEEDED.get(request["method"])
    return needed is None or caller.capabilities.get(needed) is not None
