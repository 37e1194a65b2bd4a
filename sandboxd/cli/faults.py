"""How a verb fails: one line on standard error that names the mend, and an exit code."""

from __future__ import annotations

import sys
from enum import IntEnum


class ExitCode(IntEnum):
    """What the program exits with. `exec` exits with the command's own status instead."""

    OK = 0
    FAILED = 1  # the daemon refused, or not everything could be done
    USAGE = 2  # wrong arguments or a configuration that cannot be used
    OURS = 125  # how a command or a cell ended cannot be told, by a fault of ours or the call's
    INTERRUPTED = 130  # Ctrl-C
    PIPE_CLOSED = 141  # nobody reads our output any more


class CliError(Exception):
    """Ends the program. text: one line for a person, with the mend."""

    def __init__(self, text: str, *, code: int = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def say(text: str) -> None:
    """A line on standard error in the program's name."""
    for line in text.splitlines() or [""]:
        print(f"sandboxd: {line}", file=sys.stderr, flush=True)
