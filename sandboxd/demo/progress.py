"""One line that is rewritten on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH = 30


class Progress:
    """The progress of one batch of `total` rollouts."""

    def __init__(self, name: str, *, total: int, out: TextIO | None = None) -> None:
        self._name = name
        self._total = total
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty()
        self._shown_tenth = -1

    def show(self, done: int) -> None:
        """Show that so many are done."""
        if self._is_terminal:
            self._out.write("\r" + self._line(done) + ("\n" if done == self._total else ""))
            self._out.flush()
            return
        tenth = done * 10 // self._total
        if tenth > self._shown_tenth:
            self._shown_tenth = tenth
            print(self._line(done), file=self._out, flush=True)

    def _line(self, done: int) -> str:
        filled = done * _WIDTH // self._total
        bar = "#" * filled + "." * (_WIDTH - filled)
        return f"  {self._name:<20} [{bar}] {done:>3}/{self._total}"
