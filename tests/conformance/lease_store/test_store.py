"""What every lease store promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.leases.store import LeaseStore
from sandboxd.model.box import BoxRef
from sandboxd.model.lease import End, Lease, LeaseState, LeaseTerms, Usage
from sandboxd.model.template import BoxSpec, Network, Setup
from sandboxd.wire.codes import EndReason, ErrorCode, Fault

pytestmark = pytest.mark.anyio


def lease(number: int = 1, **fields: object) -> Lease:
    terms = LeaseTerms(
        template="python",
        spec=BoxSpec(
            image="host",
            network=Network(kind="allow", allow=("a:1",)),
            setup=Setup(commands=("x",), env=(("A", "b"),)),
        ),
        env={"A": "é\n"},
        labels={"k": "v"},
        cold_because=("image",),
        idempotency_key="key",
    )
    plain = Lease(
        id=f"sbx-{number}",
        owner="tests",
        terms=terms,
        state=LeaseState.LEASED,
        created_at=float(number),
        backend="fake",
        box=BoxRef(backend="fake", box_id="box-1", details={"pid": 7, "socket": "/s"}),
        usage=Usage(execs=3),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


async def test_a_record_comes_back_as_it_was(store: LeaseStore) -> None:
    end = End(
        reason=EndReason.OOM,
        code=ErrorCode.OOM,
        fault=Fault.AGENT,
        mask=False,
        detail="d",
        at=2.5,
    )
    record = lease(end=end, state=LeaseState.ENDED)
    await store.put(record)
    assert await store.load() == [record]


async def test_putting_again_replaces(store: LeaseStore) -> None:
    await store.put(lease())
    changed = lease(state=LeaseState.ENDING)
    await store.put(changed)
    assert await store.load() == [changed]


async def test_records_come_oldest_first(store: LeaseStore) -> None:
    for number in (2, 3, 1):
        await store.put(lease(number))
    assert [record.id for record in await store.load()] == ["sbx-1", "sbx-2", "sbx-3"]


async def test_forgetting_drops_those_named_and_unknown_ids_are_nothing(store: LeaseStore) -> None:
    await store.put(lease(1))
    await store.put(lease(2))
    await store.forget(["sbx-1", "sbx-9"])
    assert [record.id for record in await store.load()] == ["sbx-2"]
