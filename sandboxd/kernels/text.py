"""Output as a person would read it: what was overwritten on a line is gone, colours are none."""

from __future__ import annotations

import re

# Escape sequences of terminals: CSI, OSC, and two-character ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """Both. It takes long for a long text."""
    return collapse(plain(text))


def collapse(text: str) -> str:
    """Carriage returns take effect, so that of a progress bar its last state is left."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_overwritten(line) if "\r" in line else line for line in lines)


def _overwritten(line: str) -> str:
    """The last stretch, and of each one before it what sticks out behind: in time that grows with
    the line alone, however often it was overwritten.
    """
    shown: list[str] = []
    width = 0
    for stretch in reversed(line.split("\r")):
        if len(stretch) > width:
            shown.append(stretch[width:])
            width = len(stretch)
    return "".join(shown)


def plain(text: str) -> str:
    """Without the escape sequences that colour it."""
    return _ESCAPES.sub("", text)
