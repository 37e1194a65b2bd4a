"""What must be true once nothing happens any more: books, store and backend tell the same story."""

from __future__ import annotations

import anyio

from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.box import BoxState
from sandboxd.model.lease import LeaseState
from tests.support.front import Front

LONG_S = 1000.0  # longer than any back-off or deadline inside the daemon


async def calm(front: Front, *, within_s: float = LONG_S) -> None:
    """Wait until stock is full and nothing is being made, disposed of or waited for."""
    with anyio.fail_after(within_s):
        while not _calm(front):  # noqa: ASYNC110 - virtual time, and no single event says it
            await anyio.sleep(0.5)


def _calm(front: Front) -> bool:
    settled = all(t.settled.is_set() for t in front.rooms.desk.book)
    over = all(t.gone.is_set() for t in front.rooms.desk.book if t.lease.over)
    pools = [pool.status() for pool in front.rooms.house.pools.values()]
    busy = any(pool.making or pool.disposing or pool.queued for pool in pools)
    full = all(pool.ready == pool.target for pool in pools)
    return settled and over and full and not busy


async def living(front: Front) -> list[Tenancy]:
    """The leases that are not over, once it is calm and all tell the same story."""
    await calm(front)
    await agree(front)
    return [tenancy for tenancy in front.rooms.desk.book if not tenancy.lease.over]


async def agree(front: Front) -> None:
    """Raise AssertionError where two of them tell different stories. Call it when it is calm."""
    book = list(front.rooms.desk.book)
    leased = {
        t.lease.box.box_id: t for t in book if t.lease.state is LeaseState.LEASED and t.lease.box
    }
    assert len(leased) == sum(t.lease.state is LeaseState.LEASED for t in book)
    stock = [box for pool in front.rooms.house.pools.values() for box in pool.stock]
    held = {box.box_id for box in stock if box.state is BoxState.LEASED}
    assert held == set(leased), "a box is leased to nobody, or a lease has no box"
    assert {box.state for box in stock} <= {BoxState.LEASED, BoxState.WARM}
    assert await front.box_ids() == {box.box_id for box in stock}, "books and backend differ"
    assert all(t.callers == 0 for t in book)
    rows = {lease.id: lease for lease in await front.store.load()}
    told = {t.lease.id for t in book}
    assert set(rows) <= told, "the store remembers what the book does not"
    for tenancy in leased.values():
        assert rows[tenancy.lease.id].state is LeaseState.LEASED
        assert rows[tenancy.lease.id].box == tenancy.lease.box
    for lease in rows.values():
        assert lease.state is LeaseState.LEASED or lease.over
