"""`python -m scripts.bench [--backend KIND] [--rows ROW …] [--json FILE]`: the table."""

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

from scripts.bench import (
    attach_rows,
    bare_engine,
    docker_rows,
    kernel_rows,
    kubernetes_rows,
    mcp_rows,
    port_rows,
    rows,
    tunnel_rows,
)
from scripts.bench.figures import Figure, Row
from scripts.bench.house import Ground, open_house

_ROW_TIMEOUT_S = 600.0


_ROWS = {
    "local": (
        *rows.ROWS,
        *attach_rows.ROWS,
        *port_rows.ROWS,
        *tunnel_rows.ROWS,
        *kernel_rows.ROWS,
        *mcp_rows.ROWS,
    ),
    "docker": docker_rows.ROWS,
    "kubernetes": kubernetes_rows.ROWS,
}


def main() -> int:
    """Run the rows. 0 if every figure reaches what it must at least."""
    parser = argparse.ArgumentParser(prog="bench", description="What the service must reach.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="some of them; else all")
    parser.add_argument("--backend", choices=sorted(_ROWS), default="local")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"), metavar="FILE")
    args = parser.parse_args()
    known = {row.name: row for row in _ROWS[args.backend]}
    if unknown := set(args.rows or ()) - known.keys():
        parser.error(f"no row {', '.join(sorted(unknown))}; {args.backend} has {', '.join(known)}")
    chosen = [row for name, row in known.items() if not args.rows or name in args.rows]
    # As a trainer that cares would run the SDK; it needs no uvloop.
    figures = anyio.run(_run, chosen, _ground(args.backend), backend_options={"use_uvloop": True})
    _print(figures)
    args.json.write_text(json.dumps(_record(figures, args.backend), indent=2) + "\n")
    return 0 if all(figure.verdict != "MISSED" for figure in figures) else 1


def _ground(backend: str) -> Ground:
    if backend == "local":
        return Ground()
    if backend == "kubernetes":
        return kubernetes_rows.ground()
    host = bare_engine.address()
    env = {"DOCKER_HOST": host} if host else {}
    # As a pool is configured by default: the backend itself bounds what starts at once.
    return Ground(backend=backend, image=bare_engine.image(), starting=4, env=env)


async def _run(chosen: Sequence[Row], ground: Ground) -> list[Figure]:
    """A daemon of its own for each row, so that none measures what another left."""
    figures: list[Figure] = []
    for row in chosen:
        print(f"… {row.name}", file=sys.stderr, flush=True)
        with anyio.fail_after(_ROW_TIMEOUT_S):
            stock = {"warm": row.warm, "idle": row.idle, "kernels": row.kernels}
            stock["tools"] = row.tools
            async with open_house(ground, **stock) as house:
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
