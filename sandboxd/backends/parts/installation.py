"""The name of an installation, which stands in those of directories and of what backends make."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


def refuse_odd_installation(name: str, *, most_chars: int | None = None) -> None:
    """Raises ValueError for a name that could leave the directories made after it, or is longer."""
    too_long = most_chars is not None and len(name) > most_chars
    if too_long or _NAME.match(name) is None:
        raise ValueError(f"{name!r} cannot name an installation")
