"""Ids that the SDK makes for its callers, so that a lost answer can be asked for again."""

from __future__ import annotations

import secrets


def fresh_id(kind: str) -> str:
    """A fresh id of 128 random bits, like `exec-5f0c…`; unlike even across a fork."""
    return f"{kind}-{secrets.token_hex(16)}"
