"""What every lease store promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.leases.store import LeaseStore
from sandboxd.model.box import BoxRef
from sandboxd.model.lease import End, Lease, LeaseState, LeaseTerms, Usage
from sandboxd.model.run import Run, RunState
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


def run(number: int = 1, **fields: object) -> Run:
    plain = Run(run_id=f"run-{number}", owner="tests", ttl_s=30.5, began_at=float(number))
    return replace(plain, **fields)  # type: ignore[arg-type]


async def test_a_run_comes_back_as_it_was_and_putting_again_replaces(store: LeaseStore) -> None:
    await store.put_run(run())
    assert await store.load_runs() == [run()]
    lost = run(state=RunState.LOST, lost_at=7.25)
    await store.put_run(lost)
    assert await store.load_runs() == [lost]


async def test_runs_come_oldest_first_and_have_nothing_to_do_with_leases(
    store: LeaseStore,
) -> None:
    await store.put(lease(1))
    for number in (2, 3, 1):
        await store.put_run(run(number))
    assert [found.run_id for found in await store.load_runs()] == ["run-1", "run-2", "run-3"]
    await store.forget(["run-1", "sbx-1"])
    assert (len(await store.load()), len(await store.load_runs())) == (0, 3)


async def test_runs_of_one_name_are_told_apart_by_their_owner(store: LeaseStore) -> None:
    await store.put_run(run())
    await store.put_run(run(owner="others"))
    await store.forget_runs([("tests", "run-1"), ("nobody", "run-1")])
    assert await store.load_runs() == [run(owner="others")]


async def test_records_that_are_written_together_are_all_there_as_they_were_given_last(
    store: LeaseStore,
) -> None:
    await store.put(lease(2, state=LeaseState.QUEUED, box=None))
    together = [lease(number) for number in (1, 2, 3)]
    await store.put_all(together)
    assert await store.load() == together
    await store.put_all([])
    assert await store.load() == together
