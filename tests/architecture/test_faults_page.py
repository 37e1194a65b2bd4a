"""The page of faults holds every verdict that there is, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandboxd.backends.parts.deaths import (
    Evidence,
    forged,
    judge,
    over_disk,
    rebooted,
)
from sandboxd.backends.protocol import Death
from sandboxd.wire.codes import (
    END_VERDICTS,
    EndReason,
    ErrorCode,
    Fault,
    Outcome,
    StartFailure,
    Verdict,
    exec_verdict,
)
from tests.architecture.tree import ROOT, text_of

PAGE = text_of(ROOT / "docs" / "faults.md")

Row = tuple[str, str | None, str | None, bool]


def rows(title: str) -> Iterator[Row]:
    """Outcome or reason, code, fault and mask of a section's rows."""
    section = re.split(rf"(?m)^#+ {title}$", PAGE)[1]
    section = re.split(r"(?m)^#+ ", section)[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) >= 6 and cells[5] in {"true", "false"}:
            name, code, fault = (None if cell == "–" else cell.strip("`") for cell in cells[2:5])
            assert name is not None
            yield name, code, fault, cells[5] == "true"


def row(name: str, verdict: Verdict) -> Row:
    """A verdict as the page has it."""
    return name, verdict.code, verdict.fault, verdict.mask


def test_every_verdict_on_a_command_has_its_row_and_no_row_is_made_up() -> None:
    there_are = {
        row(outcome, verdict)
        for outcome in Outcome
        for reason in (StartFailure if outcome is Outcome.START_FAILED else [None])
        for host_short in (False, True)
        for from_inside in (False, True)
        for verdict in [
            exec_verdict(outcome, reason=reason, host_short=host_short, from_inside=from_inside)
        ]
    }
    assert set(rows("Commands")) == there_are


def deaths() -> list[Death]:
    """One of each kind."""
    killed = Evidence(box_id="b", exit_code=137, oom_kills=1, memory_limit_bytes=100)
    return [
        judge(killed),
        judge(Evidence(box_id="b", exit_code=137, oom_kills=1, memory_peak_bytes=9)),
        *(
            judge(Evidence(box_id="b", exit_code=code))
            for code in (None, 1, 139, 160, 67, 70, 71, 72)
        ),
        judge(Evidence(box_id="b", engine_broke=True)),
        judge(Evidence(box_id="b", asked_signals=(9,))),
        judge(Evidence(box_id="b", was_removed=True)),
        rebooted("b"),
        over_disk("b", used_bytes=2, limit_bytes=1),
        forged("b", peer_pid=7, guest_pid=1),
    ]


def test_every_end_of_a_lease_has_its_row_and_no_row_is_made_up() -> None:
    there_are = {
        row(reason, verdict)
        for reason, verdict in END_VERDICTS.items()
        if reason is not EndReason.MAKE_FAILED
    }
    for death in deaths():
        code = END_VERDICTS[death.reason].code
        there_are.add(row(death.reason, Verdict(code, death.fault, death.mask)))
    assert set(rows("Sandboxes")) == there_are


def test_whatever_keeps_a_sandbox_from_being_made_is_masked_and_the_tasks_or_ours() -> None:
    found = set(rows("That never came to be"))
    assert row(EndReason.MAKE_FAILED, END_VERDICTS[EndReason.MAKE_FAILED]) in found
    assert found == {
        ("make_failed", code, fault, True)
        for code in (ErrorCode.IMAGE_UNAVAILABLE, ErrorCode.START_FAILED)
        for fault in (Fault.TASK, Fault.INFRA)
    }
