"""How many boxes a pool should start making now, and for whom. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Want(StrEnum):
    """What would serve a waiting caller."""

    STOCK = "stock"  # any box of the pool's own spec
    OWN = "own"  # a box made for this caller alone, not begun yet
    BEGUN = "begun"  # the same, in the making


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What the decision depends on."""

    target: int  # warm boxes wanted in stock
    most: int  # everything that exists may be at most so many
    starting: int  # may be in the making at once
    warm: int
    making: int  # `making_own` among them
    making_own: int  # for one caller alone
    leased: int
    disposing: int
    house_room: int  # what the whole installation still has room for
    house_spare: int  # the same, less what callers of other pools wait for
    refill: bool  # False while paused or backing off after failures
    shared_most: int  # boxes for anybody that may be begun now, whoever waits

    @property
    def free(self) -> int:
        """How many may be begun now at most; 0 or less where every place is taken."""
        exists = self.warm + self.making + self.leased + self.disposing
        return min(self.most - exists, self.starting - self.making, self.house_room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to begin: boxes for the waiting callers at these places, and boxes for anybody."""

    own: tuple[int, ...] = ()
    shared: int = 0


def plan(view: PoolView, waiting: Sequence[Want]) -> Plan:
    """Boxes to start: for those who wait, in their order, then for the stock, within every bound.

    Those who wait are served even while refill rests: each of them gets an answer of its own, a
    box or the error of its making.
    """
    free = view.free
    coming = view.warm + view.making - view.making_own
    own: list[int] = []
    shared = 0
    for place, want in enumerate(waiting):
        if len(own) + shared >= free:
            break
        if want is Want.OWN:
            own.append(place)
        elif want is Want.STOCK:
            if coming > 0:
                coming -= 1
            elif shared < view.shared_most:
                shared += 1
    if view.refill:
        begun = len(own) + shared
        room = min(free - begun, view.house_spare - begun, view.shared_most - shared)
        shared += max(0, min(view.target - coming, room))
    return Plan(own=tuple(own), shared=shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a pool has been lately, in seconds."""

    make_s: float = 1.0
    hold_s: float = 60.0


def expected_wait_s(pace: Pace, *, position: int, starting: int, most: int) -> float:
    """A rough wait for the caller at `position` (0 is next): the slower of what makes and what
    releases allow. Seconds; an estimate, never a promise.
    """
    by_makes = (position // max(1, starting) + 1) * pace.make_s
    by_releases = (position + 1) * pace.hold_s / max(1, most)
    return round(max(by_makes, by_releases), 3)
