"""One cell, whatever its kernel says in whichever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.guest.kernels import Channel, Missing
from sandboxd.kernels.cells import CellRun, Journal
from sandboxd.kernels.messages import Message
from sandboxd.model.kernel import CellOrder
from sandboxd.wire.codes import CellOutcome, Verdict
from tests.support.cells import check_outputs

CLEAN = Verdict(None, None, mask=False)
ORDER = CellOrder(cell_id="c", code="1")


def message(kind: str, content: Any, channel: Channel = Channel.IOPUB) -> Message:
    header = {"msg_type": kind, "msg_id": "m"}
    return Message(channel=channel, seq=1, header=header, parent={}, metadata={}, content=content)


def stream(text: str, name: str = "stdout") -> Message:
    return message("stream", {"name": name, "text": text})


def status(state: str) -> Message:
    return message("status", {"execution_state": state})


def reply(**content: Any) -> Message:
    return message("execute_reply", {"status": "ok", "execution_count": 1, **content}, SHELL)


SHELL = Channel.SHELL
IDLE = status("idle")


def told(run: CellRun) -> list[str]:
    return [event["type"] for event in run.journal.after(0, most=1000)]


def ended(run: CellRun) -> CellRun:
    run.end(run.outcome_by_reply(), duration_s=1, verdict=CLEAN)
    return run


@pytest.mark.parametrize("order", [(reply(), IDLE), (IDLE, reply())], ids=["reply", "idle"])
def test_a_cell_has_settled_once_reply_and_idle_are_both_in(order: tuple[Message, Message]) -> None:
    run = CellRun(ORDER)
    for part in (status("busy"), stream("1"), order[0]):
        run.hear(part)
        assert not run.settled
    run.hear(order[1])
    assert run.settled
    assert run.outcome_by_reply() is CellOutcome.OK


def test_what_comes_between_idle_and_reply_is_the_cells_and_after_both_it_is_late() -> None:
    run = CellRun(ORDER)
    for part in (IDLE, stream("in time"), reply(), stream("late")):
        run.hear(part)
    cell = ended(run).cell()
    assert (cell.stdout, cell.late_outputs[0]["text"]) == ("in time", "late")
    run.hear(stream(" later"))
    assert run.cell().late_outputs[0]["text"] == "late later"
    assert run.cell().stdout == "in time"
    assert told(run) == ["stdout"]


@pytest.mark.parametrize("early", [True, False], ids=["reply", "idle"])
def test_what_is_for_a_pager_is_shown_below_everything_else(*, early: bool) -> None:
    page = {"source": "page", "start": 0, "data": {"text/plain": "help", "text/odd": 1}}
    answer = reply(payload=[page, {"source": "set_next_input"}, None, {"source": "page"}])
    parts = [stream("a"), answer, stream("b"), IDLE] if early else [stream("ab"), IDLE, answer]
    run = CellRun(ORDER)
    for part in parts:
        run.hear(part)
    cell = ended(run).cell()
    assert [output["output_type"] for output in cell.outputs] == ["stream", "display_data"]
    assert cell.outputs[1]["data"] == {"text/plain": "help"}
    assert cell.text == "ab\nhelp"
    assert run.journal.after(0)[-1]["output"] == cell.outputs[1]


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ({"status": "ok"}, CellOutcome.OK),
        ({"status": "error"}, CellOutcome.ERROR),
        ({"status": "error", "ename": "X"}, CellOutcome.ERROR),
        ({"status": "aborted"}, CellOutcome.ABORTED),
        ({"status": "abort"}, CellOutcome.ABORTED),
        ({"status": None}, CellOutcome.ERROR),
        ({"status": "OK"}, CellOutcome.ERROR),
        ({"status": ["ok"]}, CellOutcome.ERROR),
        ({"status": 1}, CellOutcome.ERROR),
    ],
)
def test_only_a_reply_that_says_ok_is_ok(content: dict[str, Any], outcome: CellOutcome) -> None:
    run = CellRun(ORDER)
    for part in (reply(**content), IDLE):
        run.hear(part)
    assert run.outcome_by_reply() is outcome


def test_a_reply_that_cannot_be_read_is_an_error_and_marked() -> None:
    run = CellRun(ORDER)
    header = {"msg_type": "execute_reply"}
    run.hear(
        Message(
            channel=SHELL, seq=1, header=header, parent={}, metadata={}, content={}, readable=False
        )
    )
    run.hear(IDLE)
    assert ended(run).cell().outcome is CellOutcome.ERROR
    assert run.cell().truncated


def test_the_first_reply_counts() -> None:
    run = CellRun(ORDER)
    for part in (reply(status="error", ename="A"), reply(), IDLE):
        run.hear(part)
    cell = ended(run).cell()
    assert cell.outcome is CellOutcome.ERROR
    assert cell.error is not None
    assert cell.error.name == "A"


def test_an_error_that_is_shown_by_a_cell_that_goes_on_is_an_output() -> None:
    run = CellRun(ORDER)
    for part in (
        message("error", {"ename": "E", "evalue": "v", "traceback": ["t"]}),
        reply(),
        IDLE,
    ):
        run.hear(part)
    cell = ended(run).cell()
    assert (cell.outcome, cell.error) == (CellOutcome.OK, None)
    assert cell.outputs[0]["ename"] == "E"


def test_a_cell_whose_messages_are_missing_says_so_where_they_were() -> None:
    run = CellRun(ORDER)
    run.hear(stream("a"))
    run.miss(lost(12, Channel.IOPUB))
    run.hear(stream("b"))
    assert run.journal.after(1)[0] == {"seq": 2, "type": "gap", "messages": 12}
    for part in (reply(), IDLE):
        run.hear(part)
    assert ended(run).cell().truncated


def lost(messages: int, channel: Channel) -> Missing:
    return Missing(1, "cell.c", channel, messages=messages, size=1)


def test_a_cell_whose_reply_is_missing_ends_and_is_no_success() -> None:
    run = CellRun(ORDER)
    run.hear(IDLE)
    run.miss(lost(1, Channel.SHELL))
    assert run.settled
    cell = ended(run).cell()
    assert (cell.outcome, cell.truncated) == (CellOutcome.ERROR, True)


@pytest.mark.parametrize("count", [True, -1, "1", 1.5, None, [1]])
def test_a_count_that_is_none_is_not_taken(count: Any) -> None:
    run = CellRun(ORDER)
    run.hear(message("execute_input", {"execution_count": 7}))
    run.hear(reply(execution_count=count))
    assert run.cell().execution_count == 7


def test_data_that_no_notebook_can_hold_is_left_out() -> None:
    run = CellRun(ORDER)
    data = {
        "text/plain": 5, "text/html": ["<b>", "x"], "image/png": {"a": 1}, "text/x": ["a", 1],
        "application/json": {"a": [1]}, "application/vnd.x+json": 3,
    }  # fmt: skip
    run.hear(message("display_data", {"data": data, "metadata": "x", "transient": []}))
    kept = {
        name: data[name] for name in ("text/html", "application/json", "application/vnd.x+json")
    }
    assert run.cell().outputs == ({"output_type": "display_data", "data": kept, "metadata": {}},)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["name", "text", "data", "metadata", "transient", "wait", "status", "execution_state",
     "execution_count", "ename", "evalue", "traceback", "prompt", "password", "display_id"]
)  # fmt: skip
KINDS = st.sampled_from(
    ["stream", "display_data", "execute_result", "update_display_data", "clear_output", "error",
     "status", "execute_input", "execute_reply", "input_request", "comm_msg", ""]
)  # fmt: skip
LIES = st.builds(message, KINDS, st.dictionaries(FIELDS, ANYTHING), st.sampled_from(Channel))
TRUTHS = st.sampled_from(
    [IDLE, status("busy"), reply(), reply(status="error"), stream("x"), stream("y", "stderr")]
)


@given(st.lists(LIES | TRUTHS), st.integers(0, 30))
def test_no_order_of_messages_and_no_lie_breaks_a_cell(
    messages: list[Message], ends_at: int
) -> None:
    run = CellRun(ORDER)
    ends, journal, outputs = 0, 0, run.cell().outputs
    for number, part in enumerate(messages):
        run.hear(part)
        if not run.over and (run.settled or number == ends_at):
            ends += 1
            outcome = run.outcome_by_reply() if run.settled else CellOutcome.DIED
            run.end(outcome, duration_s=0, verdict=CLEAN)
            journal, outputs = run.journal.last, run.cell().outputs
    cell = run.cell()
    if run.over:
        assert ends == 1
        assert run.journal.last == journal
        assert cell.outputs == outputs
    if cell.outcome is CellOutcome.OK:
        assert any(
            part.channel is SHELL and part.content.get("status") == "ok" for part in messages
        )
        assert any(part.content.get("execution_state") == "idle" for part in messages)
    check_outputs([*cell.outputs, *cell.late_outputs])
    assert [event["seq"] for event in run.journal.after(0, most=10**6)] == list(
        range(1, run.journal.last + 1)
    )


# The journal.


def events_of(journal: Journal, *, after: int, most: int) -> list[dict[str, Any]]:
    """All of them, as a follower reads."""
    found: list[dict[str, Any]] = []
    while events := journal.after(after, most=most):
        found += events
        after = events[-1]["seq"]
    return found


@given(st.integers(0, 60), st.integers(0, 70), st.integers(1, 9), st.booleans())
def test_a_follower_sees_every_event_once_or_how_many_are_missing(
    added: int, after: int, most: int, large: bool
) -> None:
    journal = Journal()
    for number in range(added):
        size = 700_000 if large else 0
        journal.add("stdout", size=size, data=f"{number}x")
    at = after
    for event in events_of(journal, after=after, most=most):
        if event["type"] == "gap":
            at += event["events"]
        else:
            at += 1
            assert event["data"].split("x")[0] == str(at - 1)
        assert event["seq"] == at
    assert at == max(after, added)


def test_a_journal_stays_within_its_bound_and_keeps_the_newest() -> None:
    journal = Journal()
    for _ in range(200_000):
        journal.add("stdout", data="x")
    assert journal.size <= 8 << 20
    assert journal.after(199_999) == [{"seq": 200_000, "type": "stdout", "data": "x"}]
    journal.add("stdout", size=20 << 20, data="x" * (20 << 20))
    assert journal.after(200_000) == [{"seq": 200_001, "type": "gap", "messages": 1}]


def test_input_is_asked_for_only_while_it_runs() -> None:
    asks = message("input_request", {"prompt": "?"}, Channel.STDIN)
    run = CellRun(ORDER)
    run.hear(asks)
    assert run.asked_input is not None
    assert run.journal.after(0)[0]["prompt"] == "?"
    for part in (reply(), IDLE):
        run.hear(part)
    ended(run).hear(asks)
    assert run.asked_input is None


def test_a_media_type_without_end_is_none() -> None:
    run = CellRun(ORDER)
    kind = "application/" + "+" * (4 << 20)
    run.hear(message("display_data", {"data": {kind: "x", "text/plain": "y"}, "metadata": {}}))
    assert run.outputs.listed()[0]["data"] == {"text/plain": "y"}


def test_a_count_that_nobody_can_read_is_none() -> None:
    run = CellRun(ORDER)
    run.hear(message("execute_input", {"execution_count": 7}))
    run.hear(message("execute_input", {"execution_count": 10**400}))
    assert run.count == 7
