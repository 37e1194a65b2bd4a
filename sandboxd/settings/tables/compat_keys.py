"""The keys of `[compat]`: how names of foreign dialects map to ours."""

from __future__ import annotations

from pydantic import Field

from sandboxd.settings.fields import Filled, Name, Table


class DialectTable(Table):
    """How a foreign dialect's names map to ours."""

    images: dict[Filled, Name] = {}
    """Foreign image names to our templates; `"*"` for the rest."""


class CompatTable(Table):
    """Foreign dialects."""

    prime: DialectTable = Field(default_factory=DialectTable)
    """The prime-sandboxes dialect."""
    e2b: DialectTable = Field(default_factory=DialectTable)
    """The E2B dialect."""
    opensandbox: DialectTable = Field(default_factory=DialectTable)
    """The OpenSandbox dialect."""
