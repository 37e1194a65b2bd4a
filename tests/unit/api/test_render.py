"""How records look on the wire: verdicts, the shell's numbers, cuts in text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.api import render
from sandboxd.model.command import ExecRecord, Kept
from sandboxd.wire.codes import Outcome, StartFailure


def record(outcome: Outcome | None, **fields: object) -> ExecRecord:
    return ExecRecord(exec_id="e", outcome=outcome, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "status", "fault", "mask"),
    [
        (record(Outcome.EXITED, exit_code=3), 3, None, False),
        (record(Outcome.SIGNALED, signal="SEGV"), 139, "agent", False),
        (record(Outcome.TIMEOUT, signal="KILL"), 124, "agent", False),
        (record(Outcome.KILLED, signal="KILL"), 137, "client", False),
        (record(Outcome.OOM, signal="KILL"), 137, "agent", False),
        (record(Outcome.START_FAILED, reason=StartFailure.NOT_FOUND), 127, "agent", False),
        (record(Outcome.START_FAILED, reason=StartFailure.TOO_LONG), 126, "agent", False),
        (record(Outcome.START_FAILED, reason=StartFailure.BAD_CWD), 126, "client", True),
        (
            record(Outcome.START_FAILED, reason=StartFailure.BAD_CWD, from_inside=True),
            *(126, "agent", False),
        ),
        (record(Outcome.LOST), None, "unknown", True),
        (record(None), None, None, False),
    ],
)
def test_each_outcome_has_its_number_and_its_verdict(
    ended: ExecRecord, status: int | None, fault: str | None, *, mask: bool
) -> None:
    body = render.execution(ended)
    assert (body["status"], body["fault"], body["mask"]) == (status, fault, mask)
    assert (body["exit_code"] is not None) == (ended.outcome is Outcome.EXITED)


def test_what_was_left_out_is_marked_and_counted() -> None:
    text = render.text_of(Kept(100, b"head", b"tail", 92))
    assert text == "head\n[... 92 bytes not kept ...]\ntail"


@given(
    text=st.text(alphabet="aé€😀", min_size=4, max_size=40),
    cut=st.integers(0, 60),
    gap=st.integers(1, 20),
)
def test_no_cut_shows_a_broken_character(text: str, cut: int, gap: int) -> None:
    data = text.encode()
    cut = min(cut, len(data) - 1)
    kept = Kept(len(data), data[:cut], data[cut + gap :], len(data[cut : cut + gap]))
    assert "\ufffd" not in render.text_of(kept)


def test_bytes_that_are_no_text_are_replaced_and_never_an_error() -> None:
    assert render.text_of(Kept(3, b"a\xffb")) == "a\ufffdb"
