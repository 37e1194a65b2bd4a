"""A lease's ways out beside its network: forwards, each to one address outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Headers = Mapping[str, str]  # of a forward: secrets, which live in memory alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A port inside, on 127.0.0.1, that reaches one address outside and nothing else.

    url: `http://`, `https://` or `tcp://`. header_names: of headers that are added outside, in
    lower case; their values are kept apart, for no store may see them.
    """

    port: int
    url: str
    header_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOrder:
    """A forward as a caller gives it, with the values of its headers."""

    url: str
    headers: Headers = field(default_factory=dict, repr=False)
