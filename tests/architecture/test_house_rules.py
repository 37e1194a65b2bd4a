"""The rules that no linter knows: sizes, names, what may stand in a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, is_generated, name_of, python_files, text_of, tracked

MAX_FILE_LINES = 400
MAX_GO_FILE_LINES = 500
MAX_GO_TEST_LINES = 700  # a table of cases is long and easily read
MAX_FUNCTION_LINES = 80
MAX_FOLDER_FILES = 16
BANNED_WORDS = {
    "manager",
    "managers",
    "handler",
    "handlers",
    "helper",
    "helpers",
    "util",
    "utils",
    "common",
    "base",
    "misc",
}
# Not ours to choose: words of the trade, and what a library asks a thing to be named.
FOREIGN_NAMES = {
    "base_url",
    "add_exception_handler",
    "exception_handler",
    "exception_handlers",
    "get_route_handler",
}

OURS = ("sandboxd/", "client/", "scripts/", "images/guest/")


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    limits = {".py": MAX_FILE_LINES, ".go": MAX_GO_FILE_LINES}
    long = {
        name_of(path): lines
        for path in tracked()
        if path.suffix in limits
        and not is_generated(path)
        and name_of(path).startswith((*OURS, "tests/", "examples/"))
        if (lines := text_of(path).count("\n")) > limit_of(path, limits[path.suffix])
    }
    assert long == {}, f"look twice: a file with two subjects is two files: {long}"


def limit_of(path: Path, limit: int) -> int:
    return MAX_GO_TEST_LINES if path.name.endswith("_test.go") else limit


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name_of(path)}:{function.lineno} {function.name}": length
        for path in python_files(*OURS, "examples/")
        for function in functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word}


def test_no_name_hides_what_a_thing_is() -> None:
    found = {
        f"{name_of(path)}: {name}"
        for path in python_files(*OURS)
        for name in (path.stem, *defined(path))
        if words(name) & BANNED_WORDS and name not in FOREIGN_NAMES
    }
    assert found == set(), "a thing that only such a word fits does two things"


def defined(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_every_module_says_what_its_room_is_for() -> None:
    silent = [
        name_of(path)
        for path in python_files("sandboxd/", "client/", "scripts/", "examples/")
        if not ast.get_docstring(ast.parse(text_of(path)))
    ]
    assert silent == []


def test_no_folder_of_the_code_holds_more_than_a_reader_can_find_a_way_in() -> None:
    counts: dict[str, int] = {}
    for path in python_files("sandboxd/", "client/"):
        if path.name != "__init__.py":
            counts[name_of(path.parent)] = counts.get(name_of(path.parent), 0) + 1
    assert {folder: count for folder, count in counts.items() if count > MAX_FOLDER_FILES} == {}


def test_every_ignored_finding_says_why() -> None:
    bare = [
        f"{name_of(path)}:{number}"
        for path in python_files(*OURS, "tests/", "examples/")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"#\s*(noqa\b(?!:)|type:\s*ignore(?!\[))", line)
        and path.name != Path(__file__).name
    ]
    assert bare == []


def test_no_test_mocks_our_own_code() -> None:
    mocked = [
        name_of(path)
        for path in python_files("tests/")
        if re.search(r"\bunittest\.mock\b|\bmocker\b", text_of(path))
        and path.name != Path(__file__).name
    ]
    assert mocked == []


# Assembled from pieces, so that this file passes its own test.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "proxy." + "golang.org",
    "deb." + "debian.org",
    "archive." + "ubuntu.com",
    "crates" + ".io",
]
PLACES = [
    "/" + "root/",
    "/" + "work/main",
    "/work/" + "shared",
    "/work/" + ".library",
    ".py" + "env/",
    "/opt/" + "wheels",
    "/opt/" + "pypi",
]


@pytest.mark.parametrize("host", HOSTS)
def test_no_file_names_the_host_of_a_package_index(host: str) -> None:
    found = [name_of(path) for path in tracked() if host in text_of(path)]
    assert found == []


@pytest.mark.parametrize("place", PLACES)
def test_no_file_names_a_place_on_one_machine(place: str) -> None:
    pattern = re.compile(r"(?<![\w.}/-])" + re.escape(place))
    found = [
        f"{name_of(path)}:{number}"
        for path in tracked()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


TOP_LEVEL = {
    *(".ci", ".editorconfig", ".gitignore"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"),
    *("client", "docs", "examples", "helm", "images", "sandboxd", "scripts", "tests"),
}


def test_nothing_strays_at_the_top() -> None:
    strays = {name_of(path).split("/")[0] for path in tracked()} - TOP_LEVEL
    assert strays == set()


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
