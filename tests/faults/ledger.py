"""The account of a run with faults: what was asked, what came of it, and what must be zero."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Every line that must be zero is a list of what went wrong, so that it can be looked at."""

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)  # no result, and no error of the SDK's own kinds
    unexplained: list[str] = field(default_factory=list)  # a named error that nothing we did causes
    wrong: list[str] = field(default_factory=list)  # a result that is not the command's own
    twice: list[str] = field(default_factory=list)  # ran more than once
    leaked: list[str] = field(default_factory=list)  # left over at the end
    crashes: list[str] = field(
        default_factory=list
    )  # the daemon ended, or logged what it never should
    named: dict[str, str] = field(default_factory=dict)  # sandbox → the error it was lost with

    @property
    def balanced(self) -> bool:
        """Whether all that must be zero is."""
        return not any(faults for _, faults in self._must_be_zero())

    def _must_be_zero(self) -> list[tuple[str, list[str]]]:
        return [
            ("lost without a named error", self.lost),
            ("named errors without a cause", self.unexplained),
            ("wrong results", self.wrong),
            ("run twice", self.twice),
            ("left over", self.leaked),
            ("crashes of the daemon", self.crashes),
        ]

    def __str__(self) -> str:
        rows = [(name, count) for name, count in sorted(self.counts.items())]
        rows += [(name, len(faults)) for name, faults in self._must_be_zero()]
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {count:>6}" for name, count in rows]
        for name, faults in self._must_be_zero():
            lines += [f"  ! {name}: {fault}" for fault in faults[:20]]
        return "\n".join(lines)
