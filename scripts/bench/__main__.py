"""`python -m scripts.bench [--rows ROW …] [--backend KIND] [--json FILE]`: the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import anyio

from scripts.bench.house import open_house
from scripts.bench.rows import ROWS, Figure, Row

_ROW_TIMEOUT_S = 600.0


def main() -> int:
    """Run the rows. 0 if every figure reaches what it must at least."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="bench", description="What the service must reach.")
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--backend", default="local")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"), metavar="FILE")
    args = parser.parse_args()
    rows = [row for row in ROWS if row.name in args.rows]
    # As a trainer that cares would run the SDK; it needs no uvloop.
    figures = anyio.run(_run, rows, args.backend, backend_options={"use_uvloop": True})
    _print(figures)
    args.json.write_text(json.dumps(_record(figures, args.backend), indent=2) + "\n")
    return 0 if all(figure.verdict != "MISSED" for figure in figures) else 1


async def _run(rows: Sequence[Row], backend: str) -> list[Figure]:
    """A daemon of its own for each row, so that none measures what another left."""
    figures: list[Figure] = []
    for row in rows:
        print(f"… {row.name}", file=sys.stderr, flush=True)
        with anyio.fail_after(_ROW_TIMEOUT_S):
            async with open_house(backend=backend, warm=row.warm, idle=row.idle) as house:
                figures += await row.measure(house)
    return figures


def _print(figures: Sequence[Figure]) -> None:
    head = ("row", "median", "at least", "aim", "verdict", "pair")
    lines = [head, *(_cells(figure) for figure in figures)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print(" | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip())


def _cells(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.lower else "≥"
    return (
        figure.name,
        f"{figure.value:.4g} {figure.unit}".strip(),
        f"{sign} {figure.at_least:g}",
        f"{sign} {figure.aim:g}",
        figure.verdict,
        figure.against,
    )


def _record(figures: Sequence[Figure], backend: str) -> dict[str, object]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "backend": backend,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
