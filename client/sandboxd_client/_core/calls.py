"""One request as data: what to send, and whether it may be sent again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

ROUND_S = (
    25.0  # of waiting per request: under the 30 s and 60 s after which proxies cut a silent line
)
SILENCE_S = 60.0  # without a byte, on a line that should have spoken by then: it is cut

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is yet to be sent.

    path: below the daemon's prefix, with its query. safe: it changes nothing, or carries an id
    under which the daemon does it once, so it may be sent again although it may have arrived.
    silence_s: how long the daemon may take between two bytes. ends: it is short and gives something
    back, keeps it or ends it, so it never waits for a connection behind calls that last.
    headers: more of them, in ASCII.
    """

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    safe: bool = False
    silence_s: float = SILENCE_S
    ends: bool = False
    headers: tuple[tuple[str, str], ...] = ()


def silence_for(wait_s: float | None) -> float:
    """How long a line may be silent that was asked to wait so long for an answer."""
    return SILENCE_S + (wait_s or 0.0)


def path_of(*parts: str, query: Query | None = None) -> str:
    """A path of escaped parts; query values of None are left out, sequences are repeated."""
    path = "/v1/" + "/".join(quote(part, safe="") for part in parts)
    if not query:
        return path
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None:
            continue
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        pairs += [(name, _plain(item)) for item in several]
    return f"{path}?{urlencode(pairs, quote_via=quote)}" if pairs else path


def _plain(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def encode(body: Mapping[str, Any]) -> bytes:
    """A JSON body."""
    return json.dumps(body, separators=(",", ":")).encode()
