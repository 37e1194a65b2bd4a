"""What happened in this installation, for whoever follows it: kept for an hour, bounded, in order.

Synchronous but for waiting. An event belongs to the owner of a key, or to everybody. Numbers start
anew with each daemon, so an event's id carries the daemon's own mark; a follower who comes with the
id of an earlier daemon, or of an event that is no longer kept, is told of the gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio

from sandboxd.clock import Clock

KEPT_S = 3600.0
_MOST = 100_000  # about 40 MB


class EventType(StrEnum):
    """What may happen; `gap` is told to a follower alone."""

    LEASE_QUEUED = "lease.queued"
    LEASE_LEASED = "lease.leased"
    LEASE_EXPIRING = "lease.expiring"
    LEASE_ENDED = "lease.ended"
    RUN_LOST = "run.lost"
    POOL_FAULT = "pool.fault"
    POOL_READY = "pool.ready"
    IMAGE_PULLED = "image.pulled"
    GAP = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One happening. at: Unix seconds. owner: who may see it; None for everybody."""

    id: str
    type: EventType
    at: float
    owner: str | None = None
    run_id: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def seen_by(self, owner: str | None, run_id: str | None) -> bool:
        """Whether a follower hears of it. owner None sees all; run_id None follows every run."""
        mine = owner is None or self.owner is None or self.owner == owner
        return mine and (run_id is None or self.run_id == run_id)


class Events:
    """The events of one daemon. epoch: a mark of its own, without a dash."""

    def __init__(self, clock: Clock, *, epoch: str) -> None:
        self._clock = clock
        self._epoch = epoch
        self._kept: deque[Event] = deque(maxlen=_MOST)
        self._count = 0
        self._news = anyio.Event()

    def tell(
        self,
        type_: EventType,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        **facts: Any,
    ) -> None:
        """It happened now."""
        self._count += 1
        event = Event(
            id=f"{self._epoch}-{self._count}",
            type=type_,
            at=self._clock.now(),
            owner=owner,
            run_id=run_id,
            facts=facts,
        )
        self._forget()
        self._kept.append(event)
        news, self._news = self._news, anyio.Event()
        news.set()

    async def follow(
        self, *, owner: str | None, run_id: str | None = None, after: str | None = None
    ) -> AsyncIterator[Event]:
        """Events as they happen, for ever. after: the id of the last one that was seen; then those
        that were missed come first, with a `gap` before them where some are no longer kept.
        """
        place = self._count
        if after is not None:
            place, whole = self._place_after(after)
            if not whole:
                yield self._gap(after)
        while True:
            news = self._news
            for event in self._since(place):
                if event.seen_by(owner, run_id):
                    yield event
                place = self._number(event)
            if self._count == place or not self._kept:
                await news.wait()

    def _place_after(self, event_id: str) -> tuple[int, bool]:
        """The number of the last event that was seen, and whether all since are still kept."""
        self._forget()
        oldest = self._count - len(self._kept)
        epoch, _, number = event_id.partition("-")
        if epoch != self._epoch or not number.isdecimal() or int(number) > self._count:
            return oldest, False
        return max(int(number), oldest), int(number) >= oldest

    def _gap(self, after: str) -> Event:
        self._forget()
        oldest = self._count - len(self._kept)
        return Event(
            id=f"{self._epoch}-{oldest}",
            type=EventType.GAP,
            at=self._clock.now(),
            facts={"after": after},
        )

    def _since(self, place: int) -> list[Event]:
        """Those after a number; a follower who fell behind the hour misses what is gone."""
        oldest = self._count - len(self._kept)
        return list(self._kept)[max(0, place - oldest) :]

    def _number(self, event: Event) -> int:
        return int(event.id.rpartition("-")[2])

    def _forget(self) -> None:
        too_old = self._clock.now() - KEPT_S
        while self._kept and self._kept[0].at < too_old:
            self._kept.popleft()
