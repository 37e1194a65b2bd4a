"""The cells of one kernel: which wait, which runs, which have ended. Synchronous."""

from __future__ import annotations

from collections import OrderedDict, deque

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import Channel, Missing
from sandboxd.kernels import verdicts
from sandboxd.kernels.cells import CellRun
from sandboxd.kernels.messages import Message
from sandboxd.kernels.requests import cell_id_of, read_request
from sandboxd.model.kernel import CellOrder
from sandboxd.wire.codes import CellOutcome, ErrorCode

MOST_WAITING = 64
_MOST_CELLS = 256  # that are remembered
_MOST_BYTES = 32 << 20  # of ended ones
_LATE_BYTES = 8 << 20  # of what all of them showed after their ends
_WEIGHED_EACH = 8  # how many cells come until all are weighed again
_MOST_FORGOTTEN = 10_000  # whose ids are remembered, so that none is run again


class Ticket:
    """A cell and whoever waits for it. ended: once the cell is over, or `error` says why it was
    never run.
    """

    def __init__(self, run: CellRun) -> None:
        self.run = run
        self.error: SandboxdError | None = None
        self.ended = anyio.Event()

    @property
    def is_past(self) -> bool:
        """Whether all of it is in, and nobody has ended it yet."""
        return self.run.settled and not self.run.over

    def refuse(self, error: SandboxdError) -> None:
        """It will not run."""
        self.error = error
        self.ended.set()


class CellBook:
    """See the module. current: the one that the kernel was given."""

    def __init__(self) -> None:
        self.current: Ticket | None = None
        self._waiting: deque[Ticket] = deque()
        self._cells: OrderedDict[str, Ticket] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._entered = 0
        self._late = 0  # bytes of late outputs, of all cells that are remembered

    @property
    def waits(self) -> bool:
        """Whether a cell waits for its turn."""
        return bool(self._waiting)

    @property
    def last_waiting(self) -> Ticket | None:
        """The one that came last to the line."""
        return self._waiting[-1] if self._waiting else None

    def is_waiting(self, ticket: Ticket) -> bool:
        """Whether it is still in the line."""
        return ticket in self._waiting

    def known(self, order: CellOrder) -> Ticket | None:
        """The cell of that id. Raises `conflict` for an id that belongs to other code, and for one
        that ended so long ago that nothing else is remembered of it.
        """
        if order.cell_id in self._forgotten:
            raise SandboxdError(
                ErrorCode.CONFLICT, f"cell {order.cell_id!r} has ended, and was forgotten since"
            )
        known = self._cells.get(order.cell_id)
        if known is not None and known.run.order.code != order.code:
            raise SandboxdError(
                ErrorCode.CONFLICT, f"cell_id {order.cell_id!r} belongs to other code"
            )
        return known

    def join(self, order: CellOrder) -> Ticket:
        """A place in the line for a new cell. Raises `kernel_busy` where too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise SandboxdError(
                ErrorCode.KERNEL_BUSY, f"{len(self._waiting)} cells wait: ask again later"
            )
        ticket = self._enter(order)
        self._waiting.append(ticket)
        return ticket

    def revive(self, order: CellOrder, *, started_at: float) -> Ticket:
        """A cell that an earlier daemon gave to the kernel: the current one, as it seems."""
        ticket = self._enter(order)
        ticket.run.give(started_at)
        ticket.run.start()
        self.current = ticket
        return ticket

    def hear(self, message: Message) -> Ticket | None:
        """The cell that a message answers, or runs, once it has heard of it; None: of no cell."""
        if message.channel is Channel.SENT:
            return self._hear_sent(message)
        ticket = self._given(message.parent_id)
        if ticket is not None:
            before = ticket.run.late.size
            ticket.run.hear(message, late=self._late < _LATE_BYTES)
            self._late += ticket.run.late.size - before
        return ticket

    def _given(self, message_id: str) -> Ticket | None:
        """The cell of that request, if the kernel was given it. One that speaks of a cell before
        that guesses, and would have it ended before it ran.
        """
        ticket = self._cells.get(cell_id_of(message_id))
        return None if ticket is None or ticket.run.given_at is None else ticket

    def _hear_sent(self, message: Message) -> Ticket | None:
        request = read_request(message)
        if request is None or request[0].cell_id in self._cells:
            return None
        order, started_at = request
        return self.revive(order, started_at=started_at)

    def miss(self, missing: Missing) -> None:
        """Messages that are lost answered a cell."""
        ticket = self._given(missing.parent)
        if ticket is not None:
            ticket.run.miss(missing)

    def _enter(self, order: CellOrder) -> Ticket:
        ticket = self._cells[order.cell_id] = Ticket(CellRun(order))
        self._entered += 1
        if self._entered % _WEIGHED_EACH == 0:
            self._forget()
        return ticket

    def _forget(self) -> None:
        """The oldest that have ended, until the others are few and small enough."""
        ended = [(cell_id, t.run.size) for cell_id, t in self._cells.items() if t.ended.is_set()]
        size = sum(size for _, size in ended)
        for cell_id, own in ended:
            if len(self._cells) <= _MOST_CELLS and size <= _MOST_BYTES:
                return
            self._late -= self._cells.pop(cell_id).run.late.size
            size -= own
            self._forgotten[cell_id] = None
            if len(self._forgotten) > _MOST_FORGOTTEN:
                self._forgotten.popitem(last=False)

    def get(self, cell_id: str) -> Ticket | None:
        """None for an unknown cell."""
        return self._cells.get(cell_id)

    def next(self, *, at: float) -> Ticket:
        """The one that waited longest: it is on its way to the kernel from that time (Unix) on, and
        the current one.
        """
        self.current = self._waiting.popleft()
        self.current.run.give(at)
        return self.current

    def refuse_waiting(self, error: SandboxdError) -> None:
        """None of them will run."""
        while self._waiting:
            self._waiting.popleft().refuse(error)

    def abort_waiting(self) -> None:
        """They end `aborted`: what they were to follow went wrong."""
        while self._waiting:
            ticket = self._waiting.popleft()
            ticket.run.end(CellOutcome.ABORTED, duration_s=0.0, verdict=verdicts.CLEAN)
            ticket.ended.set()

    def refuse_all(self, error: SandboxdError) -> None:
        """Nor will the current one be seen to its end."""
        self.refuse_waiting(error)
        if self.current is not None and not self.current.ended.is_set():
            self.current.refuse(error)
