"""A rollout whose one tool is a notebook: what a model calculates stays there for its next cell.

The model here is a script, so that every run is the same. It sees of each cell what a person would,
makes a mistake, reads the traceback, and goes on with the variables it has. Then the answer is
judged, and the whole rollout is written down as a notebook.

    python3 examples/notebook_rollout.py [NOTEBOOK]

A daemon must run (`sandboxd serve`; SANDBOXD_API_URL says where) with a template `python`. With
`kernels = ["python3"]` in it a kernel waits in each sandbox, and the first cell takes milliseconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from sandboxd_client import AsyncKernel, AsyncSandboxd, Cell

TASK = "sales.csv has a day and an amount in each line. Which day sold most in all, and how much?"
SALES = "mon,120\ntue,90\nmon,40\nwed,155\ntue,75\n"
ANSWER = "('tue', 165)"
# What the model asks for, one after the other; the second forgets that amounts are text.
STEPS = (
    "import csv\nrows = list(csv.reader(open('sales.csv')))\nrows[:2]",
    "totals = {}\nfor day, amount in rows:\n    totals[day] = totals.get(day, 0) + amount",
    "totals = {}\nfor day, amount in rows:\n    totals[day] = totals.get(day, 0) + int(amount)",
    "max(totals.items(), key=lambda item: item[1])",
)
CELL_S, SHOWN_CHARS = 30.0, 2000


async def main() -> None:
    """One rollout: its reward, and how it went."""
    told: list[tuple[str, Cell]] = []
    async with (
        AsyncSandboxd() as client,
        client.lease("python", files={"sales.csv": SALES}, timeout_s=300) as sandbox,
        sandbox.kernel() as kernel,
    ):
        for code in STEPS:
            cell = await run_tool(kernel, code)
            told.append((code, cell))
            if cell.mask:  # not the model's doing: no reward can be right
                print("leave this rollout out:", cell.outcome, cell.fault)
                return
    errors = [cell.error.ename for _, cell in told if cell.error is not None]
    print("errors on the way:", ", ".join(errors) or "none")
    print("reward", float(told[-1][1].text == ANSWER))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(as_notebook(told))  # noqa: ASYNC240 - nothing else runs here


async def run_tool(kernel: AsyncKernel, code: str) -> Cell:
    """The tool: a cell, with what the model reads of it on the way."""
    cell = await kernel.execute(code, timeout_s=CELL_S)
    print(f"In  {code!r}\nOut {answer_to_the_model(cell)!r}")
    return cell


def answer_to_the_model(cell: Cell) -> str:
    """What a model is told: what it printed, showed or raised; else how it ended."""
    text = cell.text[:SHOWN_CHARS]
    if cell.kernel_restarted:
        text += "\n[the kernel was started anew: its variables are gone]"
    return text or f"[{cell.outcome}, without output]"


def as_notebook(told: list[tuple[str, Cell]]) -> str:
    """The rollout as a file that Jupyter opens."""
    task = {"cell_type": "markdown", "id": "task", "metadata": {}, "source": TASK}
    cells = [task, *(cell.to_notebook(code) for code, cell in told)]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})


anyio.run(main)
