"""One cell: from the order to its end, fed with the messages that answer it. Synchronous.

A cell ends when its reply and its idle are both in; what answers it later is late. Nothing here
waits or sends.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from sandboxd.guest.kernels import Channel, Missing
from sandboxd.kernels.messages import Message
from sandboxd.kernels.outputs import Outputs
from sandboxd.kernels.text import readable
from sandboxd.model.kernel import Cell, CellError, CellOrder
from sandboxd.telemetry import spans
from sandboxd.wire.codes import CellOutcome, Verdict

_JOURNAL_BYTES = 8 << 20
_PIECE_CHARS = 1 << 18  # of a stream, in one event
_EVENT_COST = 400  # of bookkeeping, in bytes
_LATE_BYTES, _LATE_CHARS = 1 << 19, 1 << 16  # as any remembered cell may have late output
_LINES = 200  # of a traceback
_LINE_CHARS = 10_000
_JSON_KIND = re.compile(r"application/(.*\+)?json$")
_KIND_CHARS = 255  # of a media type
_MOST_COUNT = 1 << 53  # what every reader of JSON can count to

Event = dict[str, Any]


class Journal:
    """The events of a cell, numbered from 1: the newest ones that fit."""

    def __init__(self) -> None:
        self.last = 0
        self.size = 0  # of what is kept, in bytes
        self._events: deque[tuple[Event, int]] = deque()

    def add(self, type_: str, *, size: int = 0, **facts: Any) -> None:
        """It happened. size: of its facts, in bytes, about."""
        self.last += 1
        event = {"seq": self.last, "type": type_, **facts}
        size += _EVENT_COST
        if size > _JOURNAL_BYTES:
            event = {"seq": self.last, "type": "gap", "messages": 1}
            size = _EVENT_COST
        self._events.append((event, size))
        self.size += size
        while self.size > _JOURNAL_BYTES and len(self._events) > 1:
            self.size -= self._events.popleft()[1]

    def after(self, seq: int, *, most: int = 256) -> list[Event]:
        """The next events after a number, at most so many; first a `gap` if some are missing."""
        kept_from = self.last - len(self._events) + 1
        events = []
        if seq + 1 < kept_from:
            events.append({"seq": kept_from - 1, "type": "gap", "events": kept_from - 1 - seq})
            seq = kept_from - 1
        start = seq + 1 - kept_from
        events += [self._events[i][0] for i in range(start, min(start + most, len(self._events)))]
        return events


class CellRun:
    """A cell on its way; see the module.

    settled: whether reply and idle are in. asked_input: the header of an input request that nobody
    has answered yet. given_at, started_at: when it went to the kernel (Unix), the latter once it is
    known to have come there: a cell that is told as started would be found again by a later daemon.
    """

    def __init__(self, order: CellOrder) -> None:
        self.order = order
        self.journal = Journal()
        self.outputs = Outputs()
        self.late = Outputs(displays=_LATE_BYTES, streams=_LATE_CHARS)
        self.outcome: CellOutcome | None = None
        self.verdict = Verdict(None, None, mask=False)
        self.given_at: float | None = None
        self.started_at: float | None = None
        self.duration_s = 0.0
        self.trace = spans.parent()  # as part of which it was asked for
        self.asked_input: Mapping[str, Any] | None = None
        self.kernel_restarted = False
        self.interrupted = False  # a caller asked for it
        self.timed_out = False
        self.settled_at: float | None = None  # by the kernel's own word
        self._reply: Mapping[str, Any] | None = None
        self._idle = False
        self._count: int | None = None
        self._error: CellError | None = None
        self._truncated = False
        self._pages: list[dict[str, Any]] = []  # what its reply says, until it has settled

    def tell(self, *, sandbox_id: str, kernel_id: str) -> None:
        """It has ended: whoever collects spans hears of it."""
        if self.given_at is not None:  # one that was aborted never was with the kernel
            spans.tell(
                "cell",
                began_at=self.given_at,
                ended_at=self.given_at + self.duration_s,
                parent=self.trace,
                sandbox_id=sandbox_id,
                kernel_id=kernel_id,
                cell_id=self.order.cell_id,
                outcome=self.outcome,
            )

    @property
    def settled(self) -> bool:
        """Whether reply and idle are both in."""
        return self._reply is not None and self._idle

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.outcome is not None

    @property
    def raised_interrupt(self) -> bool:
        """Whether it ended by what an interrupt raises in it."""
        return self._error is not None and self._error.name in _INTERRUPTS

    @property
    def count(self) -> int | None:
        """The number that the kernel gave it."""
        return self._count

    @property
    def size(self) -> int:
        """What is kept of it, in bytes, about."""
        return self.journal.size + self.outputs.size + self.late.size + len(self.order.code)

    @property
    def _past(self) -> bool:
        """Whether what comes now is late: its journal is closed, though it may not be over yet."""
        return self.over or self.settled

    # What the kernel says of it.

    def hear(self, message: Message, *, late: bool = True) -> None:
        """Take a message that answers it. late: whether there is room for what it shows if that
        comes too late.
        """
        self.start()
        self._truncated |= not message.readable
        if self._past and not late:
            self.late.truncated = True
            return
        if message.channel is Channel.SHELL:
            self._hear_reply(message)
        elif message.channel is Channel.STDIN:
            self._hear_request(message)
        elif message.channel is Channel.IOPUB:
            self._hear_show(message)
        if self._pages and self.settled and not self.over:
            self._show_pages()

    def miss(self, missing: Missing) -> None:
        """Messages that answered it are lost. With its reply goes all that says it went well."""
        self.start()
        self._truncated = True
        if not self._past:
            self.journal.add("gap", messages=missing.messages)
        if missing.channel is Channel.SHELL and self._reply is None:
            self._reply = {}

    def _hear_reply(self, message: Message) -> None:
        if message.kind != "execute_reply" or self._reply is not None:
            return
        self._reply = message.content
        self.settled_at = message.sent_at
        self._note_count(message)
        if message.content.get("status") == "error" and self._error is None:
            self._error = _error_of(message)
        self._pages = _pages_of(message.content)

    def _show_pages(self) -> None:
        """What a person reads in a pager (`name?`), below all that the cell showed."""
        pages, self._pages = self._pages, []
        for page in pages:
            output = {"output_type": "display_data", "data": page, "metadata": {}}
            size = sum(len(str(shown)) for shown in page.values())
            self.outputs.show(output, size=size)
            self.journal.add("output", size=size, output=output)

    def _hear_request(self, message: Message) -> None:
        if message.kind == "input_request" and not self._past:
            self.asked_input = message.header
            self.journal.add(
                "input_request",
                size=message.size,
                prompt=message.text("prompt"),
                password=message.content.get("password") is True,
            )

    def _hear_show(self, message: Message) -> None:
        if message.kind == "status":
            self._idle |= message.content.get("execution_state") == "idle"
        elif message.kind == "execute_input":
            self._note_count(message)
        else:
            self._show(message, self.late if self._past else self.outputs)

    def _note_count(self, message: Message) -> None:
        count = message.content.get("execution_count")
        if type(count) is int and 0 <= count < _MOST_COUNT:
            self._count = count

    def _show(self, message: Message, outputs: Outputs) -> None:
        match message.kind:
            case "stream":
                name = "stderr" if message.text("name") == "stderr" else "stdout"
                text = message.text("text")
                outputs.stream(name, text)
                for start in range(0, len(text), _PIECE_CHARS):
                    piece = text[start : start + _PIECE_CHARS]
                    self._tell(name, size=len(piece), data=piece)
            case "display_data" | "execute_result":
                self._display(message, outputs)
            case "update_display_data":
                data, metadata, display_id = _shown(message)
                size = _cost_of(message, data, metadata)
                outputs.update(display_id, data, metadata, size=size)
                facts = {"display_id": display_id, "data": data, "metadata": metadata}
                self._tell("update", size=size, **facts)
            case "clear_output":
                wait = message.content.get("wait") is True
                outputs.clear(wait=wait)
                self._tell("clear", wait=wait)
            case "error":
                self._error = _error_of(message)
                output = {
                    "output_type": "error",
                    "ename": self._error.name,
                    "evalue": self._error.value,
                    "traceback": list(self._error.traceback),
                }
                outputs.show(output, size=message.size)
                self._tell("output", size=message.size, output=output)
            case _:
                pass

    def _display(self, message: Message, outputs: Outputs) -> None:
        data, metadata, display_id = _shown(message)
        output: dict[str, Any] = {
            "output_type": message.kind,
            "data": data,
            "metadata": metadata,
        }
        if message.kind == "execute_result":
            output["execution_count"] = self._count
        if display_id:
            output["transient"] = {"display_id": display_id}
        size = _cost_of(message, data, metadata)
        outputs.show(output, size=size)
        self._tell("output", size=size, output=output)

    def _tell(self, type_: str, *, size: int = 0, **facts: Any) -> None:
        if not self._past:
            self.journal.add(type_, size=size, **facts)

    # How it begins and ends.

    def give(self, at: float) -> None:
        """It is on its way to the kernel, from that time (Unix) on."""
        self.given_at = at

    def start(self) -> None:
        """The kernel has it, if it was given it. Again is as good as once."""
        if self.started_at is None and self.given_at is not None:
            self.started_at = self.given_at
            self.journal.add("started", started_at=self.started_at)

    def end(self, outcome: CellOutcome, *, duration_s: float, verdict: Verdict) -> None:
        """It is over. Once."""
        self.outcome, self.duration_s, self.verdict = outcome, duration_s, verdict
        self.asked_input = None

    def outcome_by_reply(self) -> CellOutcome:
        """What its reply says of it; only once it has settled."""
        assert self._reply is not None
        said = self._reply.get("status")
        status = said if isinstance(said, str) else ""
        if self.timed_out:
            return CellOutcome.TIMEOUT
        if self.interrupted and self.raised_interrupt:
            return CellOutcome.INTERRUPTED
        if status == "ok":
            # Programs that a cell waits for may be all that the interrupt ended.
            return CellOutcome.INTERRUPTED if self.interrupted else CellOutcome.OK
        if status in {"aborted", "abort"}:
            return CellOutcome.INTERRUPTED if self.interrupted else CellOutcome.ABORTED
        return CellOutcome.ERROR

    def cell(self, *, text: Callable[[str], str] = readable) -> Cell:
        """The record as it is now. text: makes of its words what a person would read."""
        return Cell(
            cell_id=self.order.cell_id,
            outcome=self.outcome,
            execution_count=self._count,
            text=text(self.outputs.read()),
            stdout=self.outputs.streams["stdout"].text(),
            stderr=self.outputs.streams["stderr"].text(),
            outputs=self.outputs.listed(),
            late_outputs=self.late.listed(),
            # A kernel may show an error and go on: then it is an output like others.
            error=None if self.outcome is CellOutcome.OK else self._error,
            started_at=self.started_at,
            duration_s=self.duration_s,
            truncated=self._truncated or self.outputs.truncated or self.late.truncated,
            kernel_restarted=self.kernel_restarted,
            fault=self.verdict.fault,
            mask=self.verdict.mask,
        )


_INTERRUPTS = {"KeyboardInterrupt", "InterruptedError", "Interrupt"}


def _error_of(message: Message) -> CellError:
    lines = message.content.get("traceback")
    traceback = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
    return CellError(
        name=message.text("ename")[:_LINE_CHARS],
        value=message.text("evalue")[:_LINE_CHARS],
        traceback=tuple(line[:_LINE_CHARS] for line in traceback[:_LINES]),
    )


def _pages_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a reply has for a pager, by media types."""
    payload = content.get("payload")
    said = [each for each in payload if isinstance(each, dict)] if isinstance(payload, list) else []
    pages = [_data_of(each) for each in said if each.get("source") == "page"]
    return [page for page in pages if page]


def _data_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """The data by its media types, as far as a notebook may hold them."""
    data = content.get("data")
    shown = data.items() if isinstance(data, dict) else ()
    return {kind: value for kind, value in shown if _is_shown(kind, value)}


def _cost_of(message: Message, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> int:
    """What it takes to keep a display, in bytes, about."""
    texts = (*data.values(), *metadata.values())
    return message.size if all(isinstance(each, str) for each in texts) else message.cost


def _shown(message: Message) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The data by its media types, their metadata, and the display's id."""
    metadata = message.content.get("metadata")
    transient = message.content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return (
        _data_of(message.content),
        metadata if isinstance(metadata, dict) else {},
        display_id if isinstance(display_id, str) else "",
    )


def _is_shown(kind: str, value: Any) -> bool:
    """Whether a notebook may hold it: JSON of any kind, else text, whole or in lines. What has a
    name that is none is left out.
    """
    if len(kind) > _KIND_CHARS:
        return False
    if _JSON_KIND.match(kind) or isinstance(value, str):
        return True
    return isinstance(value, list) and all(isinstance(line, str) for line in value)
