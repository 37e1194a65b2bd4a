"""Lists on standard output: columns for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO


def print_json(value: object) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, file: TextIO | None = None
) -> None:
    """Columns under upper-case heads, as wide as they need to be. file: else standard output."""
    lines = [[column.upper() for column in columns]]
    lines += [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=file)


def in_words(seconds: float | None) -> str:
    """A duration as people say it: `42s`, `7m`, `3h`, `2d`."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def pairs(labels: Mapping[str, Any]) -> str:
    """Labels as `k=v,k=v`."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _cell(value: object) -> str:
    text = "-" if value is None or value == "" else str(value)
    # What others named must not steer the reader's terminal.
    return "".join(letter if letter.isprintable() else "�" for letter in text)
