"""Fields of an answer that must be there; without them it is not a daemon that we understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd_client.errors import Internal


def needed(told: Mapping[str, Any], name: str) -> Any:
    """A field of an answer. Raises Internal if it is not there."""
    try:
        return told[name]
    except KeyError:
        raise Internal(f"the daemon's answer has no {name!r}") from None
