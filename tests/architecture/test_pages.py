"""The pages say what the code says: codes, generated references, links, words."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from sandboxd.wire.codes import CODES, END_VERDICTS, EndReason, ErrorCode
from scripts import gen_docs
from tests.architecture.tree import ROOT, name_of, python_files, text_of, tracked

DOCS = ROOT / "docs"
PAGES = [path for path in tracked() if path.suffix == ".md"]


def test_every_error_code_has_its_row_of_facts() -> None:
    assert set(CODES) == set(ErrorCode)
    assert set(END_VERDICTS) == set(EndReason)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_has_one_place_in_the_pages_with_its_facts_and_its_mend(
    code: ErrorCode,
) -> None:
    sections = [
        section
        for path in sorted((DOCS / "errors").glob("*.md"))
        if path.name != "README.md"
        for section in re.split(r"(?m)^(?=## )", text_of(path))
        if section.startswith(f"## `{code}`\n")
    ]
    assert len(sections) == 1
    assert gen_docs.facts_line(CODES[code]) in sections[0]
    assert "\nMend: " in sections[0]


@pytest.mark.timeout(60)
def test_the_generated_pages_are_current() -> None:
    assert gen_docs.drift() == [], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_in_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    ):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / unquote(place)).resolve() if place else page
        if there in gen_docs.PAGES:  # is written from the code, which another test sees to
            continue
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(text_of(there))
        ):
            broken.append(target)
    assert broken == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as hosts of Markdown make them."""
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_is_reached_from_the_index() -> None:
    seen, ahead = set(), [DOCS / "index.md", ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        ahead += [
            (page.parent / target.partition("#")[0]).resolve()
            for target in re.findall(r"\]\(([^)\s:]+)\)", text_of(page))
        ]
    pages = {
        path
        for path in PAGES
        if name_of(path).startswith("docs/") and not name_of(path).startswith("docs/changes/")
    }
    assert sorted(name_of(path) for path in pages - seen) == []


def test_every_word_of_the_glossary_is_used_by_the_code() -> None:
    rows = re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", text_of(DOCS / "glossary.md"))
    code = "\n".join(text_of(path) for path in python_files("sandboxd/", "client/")).lower()
    unused = [
        word
        for row in rows
        for word in row.split(", ")
        if not re.search(rf"\b{re.escape(word)}|_{re.escape(word)}", code)
    ]
    assert len(rows) > 20
    assert unused == []


def test_every_change_is_told_in_a_fragment_of_a_known_kind() -> None:
    kinds = {"added", "changed", "fixed", "removed", "security"}
    fragments = [path.name for path in (DOCS / "changes").glob("*.md") if path.name != "README.md"]
    assert [
        name
        for name in fragments
        if not re.fullmatch(rf"\+?[a-z0-9-]+\.({'|'.join(kinds)})(\.\d+)?\.md", name)
    ] == []


def test_every_decision_has_a_number_of_its_own_and_the_three_parts() -> None:
    decisions = sorted((DOCS / "adr").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        for part in ("## Context", "## Decision", "## Price"):
            assert part in text_of(path), name_of(path)
