"""The account of a run with faults: what was asked, what came of it, and what must be zero."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_SHOWN = 20  # of each kind of what went wrong


@dataclass(slots=True)
class Ledger:
    """Every line that must be zero is a list of what went wrong, so that it can be looked at.

    counts: by what they count. lost: no result, and no error of the SDK's own kinds. unexplained:
    a named error that nothing we did causes. wrong: a result that is not the command's own. twice:
    ran more than once. reused: a sandbox in which somebody else had been. leaked: left over at the
    end. crashes: the daemon ended by itself, or logged what it never should. short: what was asked
    of the run itself and not reached.

    named: sandbox → the error that it was lost with. killed_boxes, killed_commands: what we did.
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    killed_boxes: set[str] = field(default_factory=set)
    killed_commands: set[str] = field(default_factory=set)
    took_s: float = 0.0

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
            ("used sandboxes handed out again", self.reused),
            ("left over", self.leaked),
            ("crashes of the daemon", self.crashes),
            ("not reached", self.short),
        ]

    def __str__(self) -> str:
        counts, zeros = sorted(self.counts.items()), self._must_be_zero()
        width = max(len(name) for name, _ in [*counts, *zeros])
        lines = [f"  {name:<{width}}  {count:>6}" for name, count in counts]
        if self.took_s:
            rate = self.counts["leases granted"] / self.took_s
            lines.append(f"  {self.took_s:.0f} s, {rate:.1f} leases a second")
        lines.append("  these must be zero:")
        lines += [f"  {name:<{width}}  {len(faults):>6}" for name, faults in zeros]
        for name, faults in zeros:
            lines += [f"  ! {name}: {fault}" for fault in faults[:_SHOWN]]
        return "\n".join(lines)
