"""Pools in trouble: a backend that is away, bursts from cold, templates that change under way."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.lease import LeaseState
from sandboxd.model.template import BoxSpec, Network, Resources
from sandboxd.wire.codes import ErrorCode, Fault
from tests.support.front import Front, World, open_world, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def test_a_backend_that_is_away_refuses_callers_by_name_until_it_is_back(
    world: World,
) -> None:
    world.backend.faults.fail_next_make(
        ErrorCode.BACKEND_UNAVAILABLE, "the engine is away", times=8
    )
    async with world.daemon(template(ready=2)) as front:
        await anyio.sleep(3)
        with pytest.raises(SandboxdError) as caught:
            await front.lease()
        error = caught.value
        assert (error.code, error.fault) == (ErrorCode.BACKEND_UNAVAILABLE, Fault.INFRA)
        assert error.retry_safe
        assert error.retry_after_s is not None
        assert error.retry_after_s >= 1
        status = front.rooms.house.pools["python"].status()
        assert status.last_error == "backend_unavailable: the engine is away"
        await anyio.sleep(120)
        await front.full()
        assert front.rooms.house.pools["python"].status().last_error is None
        assert (await front.lease()).warm


async def test_who_waits_in_vain_while_the_backend_is_away_hears_that_and_not_capacity(
    world: World,
) -> None:
    async with world.daemon(template(ready=0, starting=1)) as front:
        world.backend.faults.fail_next_make(ErrorCode.BACKEND_UNAVAILABLE, "the engine is away")
        with pytest.raises(SandboxdError):
            await front.lease()
        world.backend.faults.hang_next_make()
        with pytest.raises(SandboxdError) as caught:
            await front.lease(wait_timeout_s=20)
        assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
        assert caught.value.retry_after_s


async def test_three_hundred_leases_from_cold_succeed_without_a_storm_of_starts() -> None:
    async with (
        open_world(start_s=0.5) as world,
        world.daemon(template(ready=0, max=300, starting=6)) as front,
    ):
        pool = front.rooms.house.pools["python"]
        making: list[int] = []
        leased: list[LeaseState] = []

        async def lease() -> None:
            leased.append((await front.lease(wait_timeout_s=60)).state)

        async with anyio.create_task_group() as tasks:
            for _ in range(300):
                tasks.start_soon(lease)
            while len(leased) < 300:
                making.append(pool.stock.count(BoxState.MAKING))
                await anyio.sleep(0.05)
        assert set(leased) == {LeaseState.LEASED}
        assert max(making) == 6
        assert pool.stock.exists == 300


async def test_callers_who_queued_before_a_template_changed_get_what_they_asked_for() -> None:
    async with (
        open_world(start_s=5.0) as world,
        world.daemon(template(ready=1, max=8, starting=2)) as front,
    ):
        await front.full()
        old = [await front.lease(wait=False) for _ in range(4)]
        await anyio.sleep(1)
        changed = template(ready=1, max=8, starting=2, spec=BoxSpec(image="new"))
        await front.rooms.take({"python": changed})
        front.templates = {"python": changed}
        new = await front.lease()
        assert new.terms.spec.image == "new"
        with anyio.fail_after(60):
            for lease in old:
                await front.tenancy(lease).settled.wait()
        images = [(front.now(lease).state, lease.terms.spec.image) for lease in old]
        assert images == [(LeaseState.LEASED, "host")] * 4
        await front.full()
        pool = front.rooms.house.pools["python"]
        assert {box.fingerprint for box in pool.stock.warm()} == {changed.spec.fingerprint()}


@pytest.mark.parametrize(
    ("wish", "field", "there"),
    [
        ({"resources": Resources(gpu=1)}, "resources.gpu", "there is no GPU"),
        ({"runtime": "runsc"}, "runtime", "there is: none"),
        ({"network": Network(kind="internet")}, "network", "there is: none"),
    ],
)
async def test_what_no_box_here_can_have_is_refused_at_once_with_what_there_is(
    front: Front, wish: dict[str, object], field: str, there: str
) -> None:
    with pytest.raises(SandboxdError) as caught:
        await front.lease(**wish)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert caught.value.details["field"] == field
    assert there in caught.value.detail


async def test_a_template_that_asks_for_what_there_is_not_says_so_at_its_leases_and_pool(
    world: World,
) -> None:
    spec = BoxSpec(image="host", resources=Resources(gpu=1))
    async with world.daemon(template(ready=1, spec=spec)) as front:
        await anyio.sleep(1)
        with pytest.raises(SandboxdError) as caught:
            await front.lease()
        assert caught.value.code is ErrorCode.NOT_SUPPORTED
        last_error = front.rooms.house.pools["python"].status().last_error
        assert last_error is not None
        assert last_error.startswith("not_supported: ")
