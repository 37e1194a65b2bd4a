"""What a kernel is asked to run, and how a later daemon reads that again. Pure.

The guest keeps what a kernel was sent, so that a request itself is all that anybody must remember
of a cell. Only we and the guest have a say in it: an answer's own words about its request are not
believed.
"""

from __future__ import annotations

from typing import Any

from sandboxd.kernels.messages import Message
from sandboxd.model.kernel import CellOrder

_CELL = "cell."
_MARKS = "sandboxd"


def message_id_of(cell_id: str) -> str:
    """The id of the message that runs a cell: its own, so that the guest sends it once."""
    return _CELL + cell_id


def cell_id_of(message_id: str) -> str:
    """The cell that a message of that id runs; empty if it runs none."""
    return message_id.removeprefix(_CELL) if message_id.startswith(_CELL) else ""


def request_of(order: CellOrder, *, started_at: float) -> dict[str, Any]:
    """What `Talk.send` is to send as its `execute_request`; the metadata has what its content has
    no place for.
    """
    content = {
        "code": order.code,
        "silent": False,
        "store_history": order.store_history,
        "user_expressions": {},
        "allow_stdin": order.allow_stdin,
        "stop_on_error": order.stop_on_error,
    }
    marks = {"timeout_s": order.timeout_s, "started_at": started_at}
    return {
        "content": content,
        "msg_id": message_id_of(order.cell_id),
        "metadata": {_MARKS: marks},
    }


def read_request(sent: Message) -> tuple[CellOrder, float] | None:
    """The order and its start (Unix seconds) from what was sent; None where that runs no cell."""
    cell_id, marks = cell_id_of(sent.id), sent.metadata.get(_MARKS)
    if not cell_id or not isinstance(marks, dict):
        return None
    order = CellOrder(
        cell_id=cell_id,
        code=sent.text("code"),
        timeout_s=marks.get("timeout_s"),
        allow_stdin=sent.content.get("allow_stdin") is True,
        stop_on_error=sent.content.get("stop_on_error") is True,
        store_history=sent.content.get("store_history") is True,
    )
    return order, float(marks.get("started_at") or 0.0)
