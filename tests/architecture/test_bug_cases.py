"""Every known bug case has a test that names it, or its reason."""

from __future__ import annotations

from scripts import bug_cases


def test_every_row_is_held_by_a_test_or_answered() -> None:
    bare = [
        case.row
        for cases in bug_cases.read_areas().values()
        for case in cases
        if not case.tests and not case.answer
    ]
    assert bare == []


def test_tests_name_rows_that_there_are() -> None:
    known = {case.row for cases in bug_cases.read_areas().values() for case in cases}
    assert set(bug_cases.tests_by_row()) <= known
