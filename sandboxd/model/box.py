"""A box as data, and its way through the stockroom.

MAKING ──► WARM ──► LEASED ──► DISPOSING ──► GONE
   │         └────────────────────▲
   └──────────────────────────────┘   (a make that failed late, stock that died or went stale)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BoxState(StrEnum):
    """Where a box is; see the table in this module's docstring."""

    MAKING = "making"
    WARM = "warm"
    LEASED = "leased"
    DISPOSING = "disposing"
    GONE = "gone"


NEXT_BOX_STATES: dict[BoxState, frozenset[BoxState]] = {
    BoxState.MAKING: frozenset({BoxState.WARM, BoxState.LEASED, BoxState.DISPOSING, BoxState.GONE}),
    BoxState.WARM: frozenset({BoxState.LEASED, BoxState.DISPOSING}),
    BoxState.LEASED: frozenset({BoxState.DISPOSING}),
    BoxState.DISPOSING: frozenset({BoxState.GONE}),
    BoxState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRef:
    """A box, as data: enough to find, reach and remove it from another process.

    details: the backend's own strings and numbers (JSON), opaque above the seam.
    """

    backend: str
    box_id: str
    details: Mapping[str, str | int] = field(default_factory=dict)
