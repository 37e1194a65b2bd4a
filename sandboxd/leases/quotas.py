"""What each key may hold: the gate that counts its leases, and its rate of making them.

All that still costs something counts: what waits, what is leased, and what has ended but has its
box still. Synchronous. A key without a quota is never counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from sandboxd.errors import SandboxdError
from sandboxd.leases.book import Book
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.quota import Quota
from sandboxd.token_bucket import TokenBucket
from sandboxd.wire.codes import ErrorCode

_MINUTE_S = 60.0
_FREE = Quota()
_DUST = 1e-9  # what sums of shares are off by


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a key's leases take together. cpu: cores."""

    leases: int = 0
    cpu: float = 0.0
    memory_mb: int = 0

    def __add__(self, other: Holdings) -> Holdings:
        return Holdings(
            leases=self.leases + other.leases,
            cpu=round(self.cpu + other.cpu, 6),
            memory_mb=self.memory_mb + other.memory_mb,
        )


class Quotas:
    """The quotas of all keys, by the names that own leases."""

    def __init__(self, book: Book, quotas: Mapping[str, Quota]) -> None:
        self._book = book
        self._quotas = dict(quotas)
        self._rates: dict[str, TokenBucket] = {}  # a minute's leases, filled within a minute
        # The last count and all that was let in since: no key holds more than that. To count for
        # each lease would cost a key of a thousand leases half a millisecond each time.
        self._at_most: dict[str, Holdings] = {}

    def change(self, quotas: Mapping[str, Quota]) -> None:
        """Take other quotas, from the next request on. Who holds more than its own keeps it."""
        for owner in set(self._rates) - set(quotas):
            del self._rates[owner]
        self._at_most.clear()  # what a key without a quota leases is not added up
        self._quotas = dict(quotas)

    def of(self, owner: str) -> Quota:
        """The quota of a key."""
        return self._quotas.get(owner, _FREE)

    def held(self, owner: str) -> Holdings:
        """What a key's leases take now."""
        found = [tenancy.lease.terms.spec.resources for tenancy in self._book.held_by(owner)]
        return Holdings(
            leases=len(found),
            cpu=round(sum(each.cpu for each in found), 6),
            memory_mb=sum(each.memory_mb for each in found),
        )

    def creates_left(self, owner: str) -> int | None:
        """How many leases a key may ask for right now; None: any number."""
        most = self.of(owner).creates_per_minute
        return None if most is None else self._rate(owner, most).whole

    def admit(self, order: LeaseOrder, *, owner: str, count: int) -> None:
        """Raises `quota_exceeded`, with the quota, its limit and its use in `details`."""
        quota = self.of(owner)
        if quota == _FREE:
            return
        held, asked = self._room(quota, order, owner=owner, count=count)
        if quota.creates_per_minute is not None:
            self._spend(quota.creates_per_minute, owner=owner, count=count)
        self._at_most[owner] = held + asked

    def _room(
        self, quota: Quota, order: LeaseOrder, *, owner: str, count: int
    ) -> tuple[Holdings, Holdings]:
        """What it holds at most, and what it asks for, which has room beside that. Raises."""
        resources = order.terms.spec.resources
        asked = Holdings(
            leases=count, cpu=round(resources.cpu * count, 6), memory_mb=resources.memory_mb * count
        )
        held = self._at_most.get(owner)
        if held is None or _first_over(quota, held, asked) is not None:
            held = self._at_most[owner] = self.held(owner)
        if (over := _first_over(quota, held, asked)) is not None:
            _refuse(over)
        return held, asked

    def _spend(self, most: int, *, owner: str, count: int) -> None:
        rate = self._rate(owner, most)
        if (wait_s := rate.take(count)) > 0:
            used = most - rate.whole
            _refuse(_Over("creates_per_minute", limit=most, used=used, asked=count), wait_s=wait_s)

    def _rate(self, owner: str, most: int) -> TokenBucket:
        rate = self._rates.setdefault(owner, TokenBucket(most / _MINUTE_S, at_once=most))
        rate.per_s, rate.at_once = most / _MINUTE_S, most  # as the quota is by now
        return rate


@dataclass(frozen=True, slots=True)
class _Over:
    """A quota, and what is used and asked for beyond it."""

    name: str
    limit: float
    used: float
    asked: float

    @property
    def hopeless(self) -> bool:
        """Whether it would be over even if nothing else were held."""
        return self.asked > self.limit + _DUST


def _first_over(quota: Quota, held: Holdings, asked: Holdings) -> _Over | None:
    for name in ("leases", "cpu", "memory_mb"):
        limit, used, more = getattr(quota, name), getattr(held, name), getattr(asked, name)
        if limit is not None and used + more > limit + _DUST:
            return _Over(name, limit=limit, used=used, asked=more)
    return None


def _refuse(over: _Over, *, wait_s: float | None = None) -> NoReturn:
    """Whoever asks for more than all of it is told that waiting is in vain."""
    if over.hopeless:
        mend = "this request alone is over it, so waiting will not help: ask for less"
    elif wait_s is None:
        mend = "release some first"
    else:
        mend = f"ask again in {wait_s:.1f} s"
    raise SandboxdError(
        ErrorCode.QUOTA_EXCEEDED,
        f"this key's quota `{over.name}` is {over.limit:g}, {over.used:g} are used and "
        f"{over.asked:g} more were asked for; {mend}",
        retry_safe=not over.hopeless,
        retry_after_s=None if over.hopeless else wait_s,
        details={
            "quota": over.name,
            "limit": over.limit,
            "used": over.used,
            "asked": over.asked,
            "waiting_helps": not over.hopeless,
        },
    )
