"""What those who wait before a pool still need: the queue held against the stock. Synchronous."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from sandboxd.model.box import BoxState
from sandboxd.model.template import PoolSettings
from sandboxd.pool.admission import Queue, Ticket, Unit
from sandboxd.pool.plan import PoolView, Want
from sandboxd.pool.stock import Stock

# Who goes first when pools share room: smaller ones.
Precedence = tuple[int, int, int]
_NOBODY: Precedence = (2, 0, 0)


class Demand:
    """One pool's. Asked with each request that joins a queue, which may be long: so nothing here
    walks further along it than it must.

    fingerprint: of what it makes for everybody. last_begun: when it last began a box for a caller,
    as a number that grows with each that any pool begins.
    """

    def __init__(
        self, queue: Queue, stock: Stock, *, fingerprint: str, settings: PoolSettings
    ) -> None:
        self._queue = queue
        self._stock = stock
        self.fingerprint = fingerprint
        self.settings = settings
        self.last_begun = 0

    @property
    def coming(self) -> int:
        """Boxes for everybody in the making, for whoever is next."""
        return self._stock.making(self.fingerprint) - self._queue.begun(self.fingerprint)

    @property
    def precedence(self) -> Precedence:
        """Who is served first across pools, once promises are kept: a unit that has begun; then
        pools in turn, those that were served longest ago first; of two that never were, whoever
        has waited longer.
        """
        unserved = (ticket for ticket in self._unserved() if not _promised(ticket))
        first = next(unserved, None)
        if first is None:
            return _NOBODY
        if first.unit is not None and first.unit.begun is not None:
            return (0, first.unit.begun, 0)
        if self.last_begun:  # no other pool has the same
            return (1, self.last_begun, 0)
        return (1, 0, min([first.number, *(ticket.number for ticket in unserved)]))

    @property
    def could_begin(self) -> int:
        """How many boxes it would begin now for those who wait, if the house had room."""
        starting = self.settings.starting - self._stock.count(BoxState.MAKING)
        most = max(0, min(starting, self.room))
        return sum(1 for _ in islice(self._unserved(), most)) if most else 0

    @property
    def promised(self) -> int:
        """Boxes that units are still to get for which there was room when they began."""
        return sum(map(_promised, takewhile(_has_begun, self._unserved())))

    @property
    def room(self) -> int:
        """How many more boxes the pool may have."""
        return self.settings.max - self._stock.exists

    def in_the_way(self, unmet: int) -> int:
        """How many boxes of the stock, which nobody waits for, keep out callers who want something
        else. unmet: how many of those there are.
        """
        lacking = unmet - self.room - self._stock.count(BoxState.DISPOSING)
        return max(0, lacking)

    @property
    def next_unit(self) -> Unit | None:
        """The unit that is next to begin, if whoever comes before it is served."""
        for ticket in self._queue.unserved(self.fingerprint, coming=self.coming):
            return None if ticket.served else ticket.unit
        return None

    def missing(self, unit: Unit) -> int:
        """How many boxes must be made for a unit that takes what there is in stock."""
        fingerprint = next(t.fingerprint for t in self._queue.everybody() if t.unit is unit)
        return unit.size - self._stock.in_stock(fingerprint)

    def own_tickets(self) -> list[Ticket]:
        """All who wait for a box of the pool's own kind."""
        return [t for t in self._queue.everybody() if t.fingerprint == self.fingerprint]

    def view(
        self,
        *,
        target: int,
        house_room: int,
        house_spare: int,
        refill: bool,
        shared_most: int | None,
    ) -> PoolView:
        """The pool as the plan sees it. shared_most: None for any number."""
        making = self._stock.count(BoxState.MAKING)
        return PoolView(
            target=target,
            most=self.settings.max,
            starting=self.settings.starting,
            warm=self._stock.count(BoxState.WARM),
            making=making,
            making_own=making - self.coming,
            leased=self._stock.count(BoxState.LEASED),
            disposing=self._stock.count(BoxState.DISPOSING),
            house_room=house_room,
            house_spare=house_spare,
            refill=refill,
            shared_most=self.settings.max if shared_most is None else shared_most,
        )

    def wants(self) -> list[tuple[Ticket, Want]]:
        """Those to whom boxes go, the next first, with what would serve each."""
        return [(ticket, self._want(ticket)) for ticket in self._queue.waiting()]

    def _want(self, ticket: Ticket) -> Want:
        if ticket.making is not None:
            return Want.BEGUN
        return Want.STOCK if ticket.fingerprint == self.fingerprint else Want.OWN

    def _unserved(self) -> Iterator[Ticket]:
        unserved = self._queue.unserved(self.fingerprint, coming=self.coming)
        return (ticket for ticket in unserved if ticket.served)


def _has_begun(ticket: Ticket) -> bool:
    """Whether it is of a unit that takes boxes: those stand before all others."""
    return ticket.unit is not None and ticket.unit.begun is not None


def _promised(ticket: Ticket) -> bool:
    """Whether there was room for it when its unit began."""
    return ticket.unit is not None and ticket.unit.covered
