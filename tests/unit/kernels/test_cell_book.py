"""The cells of one kernel: each has one end, none is run twice, what is remembered has bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import Channel
from sandboxd.kernels import endings
from sandboxd.kernels.cell_book import MOST_WAITING, CellBook, Ticket
from sandboxd.kernels.messages import Message
from sandboxd.kernels.requests import message_id_of
from sandboxd.model.kernel import CellOrder
from sandboxd.wire.codes import ErrorCode

_MB = 1 << 20


def order(number: int, *, code: str = "1") -> CellOrder:
    return CellOrder(cell_id=f"c{number}", code=code)


def message(cell: str, kind: str, *, channel: Channel = Channel.IOPUB, **content: str) -> Message:
    size = sum(map(len, content.values()))
    return Message(
        channel=channel, seq=1, header={"msg_type": kind, "msg_id": "m"}, metadata={},
        raw=b"x" * size, parent={"msg_id": message_id_of(cell)}, content=content,
    )  # fmt: skip


def run_next(book: CellBook, *, text: str = "") -> Ticket:
    """Give the kernel the next cell, which prints that and ends."""
    ticket = book.next(at=0)
    cell_id = ticket.run.order.cell_id
    book.hear(message(cell_id, "stream", name="stdout", text=text))
    book.hear(message(cell_id, "execute_reply", channel=Channel.SHELL, status="ok"))
    book.hear(message(cell_id, "status", execution_state="idle"))
    assert ticket.is_past
    endings.end_by_reply(ticket.run, at=1)
    book.current = None
    ticket.ended.set()
    return ticket


def refused(error: pytest.ExceptionInfo[SandboxdError], code: ErrorCode) -> bool:
    return error.value.code is code


def test_the_line_has_a_bound() -> None:
    book = CellBook()
    for number in range(MOST_WAITING):
        book.join(order(number))
    with pytest.raises(SandboxdError) as error:
        book.join(order(MOST_WAITING))
    assert refused(error, ErrorCode.KERNEL_BUSY)
    assert book.known(order(MOST_WAITING)) is None
    assert book.known(order(3)) is book.get("c3")


def test_an_id_belongs_to_its_code() -> None:
    book = CellBook()
    book.join(order(1))
    with pytest.raises(SandboxdError) as error:
        book.known(order(1, code="2"))
    assert refused(error, ErrorCode.CONFLICT)


def test_of_what_was_forgotten_the_id_is_known() -> None:
    book = CellBook()
    for number in range(600):
        book.join(order(number))
        run_next(book)
    assert book.get("c0") is None
    assert book.get("c599") is not None
    with pytest.raises(SandboxdError) as error:
        book.known(order(0))
    assert refused(error, ErrorCode.CONFLICT)
    assert sum(book.get(f"c{number}") is not None for number in range(600)) <= 256 + 8


def test_what_is_remembered_of_large_cells_is_bounded() -> None:
    book = CellBook()
    for number in range(100):
        book.join(order(number))
        run_next(book, text="x" * 2 * _MB)
    kept = [ticket.run.size for n in range(100) if (ticket := book.get(f"c{n}")) is not None]
    assert sum(kept) < 80 * _MB
    assert book.get("c99") is not None


def test_what_all_cells_show_too_late_is_bounded_too() -> None:
    book = CellBook()
    for number in range(200):
        book.join(order(number))
        run_next(book)
    for number in range(200):
        for _ in range(10):
            text = "x" * 20_000
            book.hear(message(f"c{number}", "stream", name="stdout", text=text))
    runs = [ticket.run for n in range(200) if (ticket := book.get(f"c{n}")) is not None]
    assert sum(run.late.size for run in runs) < 10 * _MB
    assert runs[0].cell().late_outputs
    assert all(run.cell().truncated for run in runs)
    for number in range(200, 600):  # whoever is forgotten gives its room back
        book.join(order(number))
        run_next(book)
    book.hear(message("c599", "stream", name="stdout", text="late"))
    ticket = book.get("c599")
    assert ticket is not None
    assert ticket.run.cell().late_outputs


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "run", "abort", "refuse", "late", "attach"]), st.integers(0, 9)
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_a_cell_ends_once_and_runs_at_most_once(
    steps: list[tuple[str, int]],
) -> None:
    book = CellBook()
    began: list[str] = []
    ends: dict[str, object] = {}
    for step, number in steps:
        known = book.known(order(number))
        if step == "join" and known is None:
            book.join(order(number))
        elif step == "run" and book.waits:
            began.append(run_next(book, text="x").run.order.cell_id)
        elif step == "abort":
            book.abort_waiting()
        elif step == "refuse":
            book.refuse_waiting(SandboxdError(ErrorCode.KERNEL_DIED, "dead"))
        elif step == "late":
            book.hear(message(f"c{number}", "stream", name="stdout", text="late"))
        for cell in range(10):
            ticket = book.get(f"c{cell}")
            if ticket is not None and ticket.ended.is_set():
                end = (ticket.run.outcome, ticket.error, ticket.run.journal.last)
                assert ends.setdefault(f"c{cell}", end) == end
    assert len(began) == len(set(began))
