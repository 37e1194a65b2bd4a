"""What was looked at for `sandboxd doctor`, and the mend of each gap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. vital: without it the backend makes no box at all."""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    vital: bool = False


def fine(name: str, detail: str) -> Finding:
    """As it should be."""
    return Finding(name=name, ok=True, detail=detail)


def gap(name: str, detail: str, mend: str, *, vital: bool = False) -> Finding:
    """Not as it should be, and what to do."""
    return Finding(name=name, ok=False, detail=detail, mend=mend, vital=vital)
