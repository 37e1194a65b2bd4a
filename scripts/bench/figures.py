"""What a row is, and what comes of it: one number with its bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from scripts.bench.house import House
from scripts.bench.measure import Pair, median


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its bounds. lower: whether less is better."""

    name: str
    value: float
    unit: str
    at_least: float
    aim: float
    lower: bool = True
    against: str = ""

    @property
    def verdict(self) -> str:
        """`aim`, `ok` or `MISSED`."""
        if self._reaches(self.aim):
            return "aim"
        return "ok" if self._reaches(self.at_least) else "MISSED"

    def _reaches(self, bound: float) -> bool:
        return self.value <= bound if self.lower else self.value >= bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: how it is measured, and how much warm stock its daemon keeps."""

    name: str
    measure: Callable[[House], Awaitable[list[Figure]]]
    warm: int = 0
    idle: int = 0
    kernels: int = 0
    tools: int = 0


def medians(pair: Pair) -> str:
    """Both of them, for people."""
    return f"{median(pair.ours):.2f} ms against {median(pair.other):.2f} ms"
