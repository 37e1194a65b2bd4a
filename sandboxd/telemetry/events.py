"""What happened in this installation, for whoever follows it: kept for an hour, bounded, in order.

Synchronous but for waiting. An event belongs to the owner of a key, or to everybody. Numbers start
anew with each daemon, so an event's id carries the daemon's own mark; a follower who comes with the
id of an earlier daemon, or of an event that is no longer kept, is told of the gap.

Telling stands on the hot path: it costs the same whoever follows. Those who follow the same events
share a channel, and hear nothing of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import anyio
import anyio.lowlevel

from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

KEPT_S = 3600.0
_MOST = 100_000  # about 80 MB
_CHANNEL_KEEPS = 2048  # a follower who is further behind reads from what everybody shares
_BATCH = 256
_LOOK_THROUGH = 4096  # at once, of what was missed; a millisecond
_MOST_FOLLOWERS = 2000


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """One happening. at: Unix seconds. owner: who may see it; None for everybody. facts: small
    JSON; neither a secret nor an environment.
    """

    id: str
    number: int
    type: EventType
    at: float
    owner: str | None = None
    run_id: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def seen_by(self, owner: str | None, run_id: str | None) -> bool:
        """Whether a follower hears of it. owner None sees all; run_id None follows every run."""
        mine = owner is None or self.owner is None or self.owner == owner
        return mine and (run_id is None or self.run_id == run_id)


_Topic = tuple[str | None, str | None]  # owner and run_id of those who follow; None for all


class Events:
    """The events of one daemon. epoch: a mark of its own, without a dash."""

    def __init__(self, clock: Clock, *, epoch: str) -> None:
        self._clock = clock
        self._epoch = epoch
        self._kept: deque[Event] = deque(maxlen=_MOST)
        self._count = 0
        self._channels: dict[_Topic, _Channel] = {}
        self.followers = 0

    @property
    def count(self) -> int:
        """The number of the last event."""
        return self._count

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
            id=self.id_of(self._count),
            number=self._count,
            type=type_,
            at=self._clock.now(),
            owner=owner,
            run_id=run_id,
            facts=facts,
        )
        self._forget()
        self._kept.append(event)
        if self._channels:
            for channel in self._channels_of(event):
                channel.add(event)

    def id_of(self, number: int) -> str:
        """The id of the event of that number, for a follower to come back with."""
        return f"{self._epoch}-{number}"

    @contextmanager
    def follow(
        self, *, owner: str | None, run_id: str | None = None, after: str | None = None
    ) -> Iterator[Follower]:
        """A follower, for the length of the block.

        owner None sees all; run_id None follows every run. after: the id of the last event that
        was seen; then those that were missed come first, with a `gap` before them where some are
        no longer kept. Raises `capacity` where too many follow already.
        """
        if self.followers >= _MOST_FOLLOWERS:
            raise SandboxdError(
                ErrorCode.CAPACITY,
                f"{self.followers} follow the events already, more may not",
                retry_after_s=10.0,
            )
        topic = (owner, run_id)
        channel = self._channels.setdefault(topic, _Channel())
        channel.followers += 1
        self.followers += 1
        try:
            yield Follower(self, channel, topic, after=after)
        finally:
            self.followers -= 1
            channel.followers -= 1
            if channel.followers == 0:
                del self._channels[topic]

    def place_after(self, event_id: str) -> tuple[int, bool]:
        """The number of the last event that was seen, and whether all since are still kept."""
        self._forget()
        epoch, _, number = event_id.partition("-")
        known = epoch == self._epoch and number.isascii() and number.isdigit() and len(number) < 20
        if not known or int(number) > self._count:
            return self.gone, False
        return max(int(number), self.gone), int(number) >= self.gone

    @property
    def gone(self) -> int:
        """The number of the last event that is not kept any more."""
        return self._count - len(self._kept)

    def gap(self, after: str) -> Event:
        """What a follower is told instead of what is gone."""
        return Event(
            id=self.id_of(self.gone),
            number=self.gone,
            type=EventType.GAP,
            at=self._clock.now(),
            facts={"after": after},
        )

    def since(self, number: int, *, most: int) -> list[Event]:
        """At most so many after that number, or after what is gone, whoever may see them."""
        start = max(0, number - self.gone)
        left = len(self._kept) - start
        if left > start:
            return list(islice(self._kept, start, start + most))
        # The shorter way to it: whoever comes back was mostly here a moment ago.
        newest_first = list(islice(reversed(self._kept), left))
        return newest_first[::-1][:most]

    def _channels_of(self, event: Event) -> Iterator[_Channel]:
        if event.owner is None:  # everybody's: seldom
            for (owner, run_id), channel in self._channels.items():
                if event.seen_by(owner, run_id):
                    yield channel
            return
        owners, runs = {event.owner, None}, {event.run_id, None}
        for topic in [(owner, run_id) for owner in owners for run_id in runs]:
            if (found := self._channels.get(topic)) is not None:
                yield found

    def _forget(self) -> None:
        too_old = self._clock.now() - KEPT_S
        while self._kept and self._kept[0].at < too_old:
            self._kept.popleft()


class _Channel:
    """What those who follow the same events have in common: the newest of them, and the news."""

    __slots__ = ("count", "followers", "newest", "news")

    def __init__(self) -> None:
        self.newest: deque[Event] = deque(maxlen=_CHANNEL_KEEPS)
        self.count = 0
        self.followers = 0
        self.news: anyio.Event | None = None  # while somebody waits

    def add(self, event: Event) -> None:
        self.newest.append(event)
        self.count += 1
        if self.news is not None:
            self.news.set()
            self.news = None

    async def wait(self) -> None:
        if self.news is None:
            self.news = anyio.Event()
        await self.news.wait()


class Follower:
    """One who follows. Made by `Events.follow`."""

    def __init__(
        self, events: Events, channel: _Channel, topic: _Topic, *, after: str | None
    ) -> None:
        self._events = events
        self._channel = channel
        self._topic = topic
        self._in_channel = channel.count
        self._until = events.count  # what was missed ends here; the channel has the rest
        self._place = events.count  # all up to this number were seen, or are not ours
        self._gap: Event | None = None
        if after is not None:
            self._place, whole = events.place_after(after)
            self._gap = None if whole else events.gap(after)

    @property
    def place(self) -> str:
        """What to come back with: nothing up to here is missed."""
        caught_up = self._gap is None and self._place >= self._until
        if caught_up and self._in_channel == self._channel.count:
            return self._events.id_of(self._events.count)
        return self._events.id_of(self._place)

    async def batch(self) -> list[Event]:
        """The next events, at least one and a few hundred at most; waits for one. Cancelled: none
        is lost.
        """
        while True:
            if found := self._take():
                return found
            if self._place < self._until:
                await anyio.lowlevel.checkpoint()  # it is long: others have their turn
            else:
                await self._channel.wait()

    def _take(self) -> list[Event]:
        if self._gap is not None:
            gap, self._gap = self._gap, None
            return [gap]
        if self._place < self._until:
            return self._missed()
        return self._from_channel()

    def _missed(self) -> list[Event]:
        """Of what was told before we came, or while we were too slow for the channel."""
        if self._place < self._events.gone:
            after = self._events.id_of(self._place)
            self._place = self._events.gone
            return [self._events.gap(after)]
        looked = self._events.since(self._place, most=_LOOK_THROUGH)
        found: list[Event] = []
        for event in looked:
            if event.number > self._until or len(found) == _BATCH:
                break
            self._place = event.number
            if event.seen_by(*self._topic):
                found.append(event)
        if not looked:
            self._place = self._until
        return found

    def _from_channel(self) -> list[Event]:
        channel = self._channel
        behind = channel.count - self._in_channel
        if behind > len(channel.newest):
            self._until, self._in_channel = self._events.count, channel.count
            return self._missed()
        start = len(channel.newest) - behind
        found = list(islice(channel.newest, start, start + _BATCH))
        self._in_channel += len(found)
        self._place = self._until = found[-1].number if found else self._events.count
        return found
