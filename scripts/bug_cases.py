"""The known bug cases: which rows there are, which tests hold them, and the page that says so."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests" / "contract" / "cases" / "rows.toml"


@dataclass(frozen=True, slots=True)
class Case:
    """One row. tests: where it is held, as `file::test`; answer: why it is not, else empty."""

    row: str
    promise: str
    tests: tuple[str, ...]
    answer: str


def read_areas() -> Mapping[str, list[Case]]:
    """The rows of each area, by the area's title."""
    known = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    answers, held = known.pop("answers"), tests_by_row()
    return {
        area["title"]: [
            Case(row, promise, tuple(held.get(row, ())), answers.get(row, ""))
            for row, promise in area.items()
            if row != "title"
        ]
        for area in known.values()
    }


def tests_by_row() -> Mapping[str, list[str]]:
    """Every test that names a row, by row, in the order of files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = [
            row for node in tree.body if isinstance(node, ast.Assign) for row in _rows(node)
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = [row for mark in node.decorator_list for row in _rows(mark)]
                if node.name.startswith("test_"):
                    for row in dict.fromkeys(of_module + named):
                        found[row].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _rows(tree: ast.AST) -> Iterator[str]:
    """The rows that marks below a node name."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "requirement"
        ):
            for arg in node.args:
                if isinstance(arg, ast.Constant):
                    yield str(arg.value)


_HEAD = """\
How services like this one have broken in the field, and what holds here instead. Each row has a
test that brings it about, or the reason why it has none. Rows that wait long in truth are run with
scaled times by `make test` and `make test-docker`, and with their real ones by `make test-long` and
`make test-docker-long`.

"""


def page(note: str) -> str:
    """The page. note: what stands below its heading."""
    parts = ["# Bug cases\n\n", note, _HEAD]
    for title, cases in read_areas().items():
        parts.append(f"## {title}\n\n| row | what holds | held by |\n| --- | --- | --- |\n")
        parts += [f"| {case.row} | {case.promise} | {_held_by(case)} |\n" for case in cases]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _held_by(case: Case) -> str:
    files: dict[str, list[str]] = defaultdict(list)
    for test in case.tests:
        path, _, name = test.partition("::")
        files[path].append(name)
    held = [f"[{path}](../{path}): {', '.join(names)}" for path, names in files.items()]
    return "<br>".join([*held, *([case.answer] if case.answer else [])]) or "**nothing yet**"
