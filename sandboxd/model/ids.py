"""Ids: ours are opaque and unguessable, a caller's are taken as they are."""

from __future__ import annotations

import re
import secrets
from uuid import uuid4

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_LETTERS = 26  # 5 bits each: 130 random bits, over the 122 that are promised

CALLER_ID_PATTERN = r"^[A-Za-z0-9._:@-]{1,128}$"
_CALLER_ID = re.compile(CALLER_ID_PATTERN[:-1] + r"\Z")


def new_id(prefix: str) -> str:
    """A fresh id like `sbx-k3…`: lower-case, URL-safe, 130 random bits."""
    number = secrets.randbits(5 * _LETTERS)
    return f"{prefix}-" + "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in range(_LETTERS))


def new_kernel_id() -> str:
    """A fresh id of a kernel: a UUID, since the routes of Jupyter Server take nothing else."""
    return str(uuid4())


def is_caller_id(text: str) -> bool:
    """Whether a caller may name an exec, run, group, rollout or idempotency key so."""
    return _CALLER_ID.match(text) is not None
