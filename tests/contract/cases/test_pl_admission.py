"""Pools under pressure: more callers than sandboxes, and stock that dies as fast as it is made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import anyio
import anyio.from_thread
import httpx
import pytest

from sandboxd_client import AsyncSandboxd
from tests.contract.cases.houses import House
from tests.contract.cases.times import scaled
from tests.contract.speaker import eventually, problem

OpenHouse = Callable[..., AbstractContextManager[House]]

pytestmark = [pytest.mark.timeout(900), pytest.mark.serial]

_STARTING = 4  # how far refill may go beyond its mark: as many as may be in the making at once
_SLACK_S = 30.0  # of an answer: for a thousand connections of one client on a busy machine


def loads(*, small: tuple[int, int, float], real: tuple[int, int, float]) -> pytest.MarkDecorator:
    """Callers, sandboxes, and seconds that each is held: light in every run, the row's own in the
    long one.
    """
    return pytest.mark.parametrize(
        ("callers", "most", "hold_s"),
        [
            pytest.param(*small, id="light"),
            pytest.param(*real, id="real", marks=pytest.mark.slow),
        ],
    )


@pytest.mark.anyio
@pytest.mark.requirement("PL-12")
@loads(small=(40, 4, 0.4), real=(1000, 50, 5.0))
async def test_pl_12_over_capacity_each_is_served_or_told_when_to_ask_again_in_time(
    open_house: OpenHouse, callers: int, most: int, hold_s: float
) -> None:
    wait_s = hold_s * callers / most / 2  # enough for about half of them
    with open_house(pool=f"ready = {most}, max = {most}") as house:
        house.full()
        answers: Counter[int] = Counter()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=house.url, timeout=300, limits=limits) as http:

            async def create() -> None:
                began_at = time.monotonic()
                order = {"template": "python", "wait_timeout_s": wait_s}
                answer = await http.post("/v1/sandboxes", json=order)
                answers[answer.status_code] += 1
                assert time.monotonic() - began_at <= wait_s + _SLACK_S
                if answer.status_code == 201:
                    await anyio.sleep(hold_s)
                    await http.delete(f"/v1/sandboxes/{answer.json()['id']}")
                    return
                told = problem(answer, 503, "capacity")
                assert int(answer.headers["retry-after"]) >= 1
                assert isinstance(told["retry_after_s"], float)
                assert set(told["details"]) == {"position", "expected_wait_s"}
                assert told["retry_safe"]

            async with anyio.create_task_group() as tasks:
                for _ in range(callers):
                    tasks.start_soon(create)
                    await anyio.sleep(1 / callers)
        assert set(answers) <= {201, 503}
        assert answers[201] >= most
        house.empty(within_s=60)
        assert house.errors() == []


@pytest.mark.anyio
@pytest.mark.requirement("PL-12")
@loads(small=(60, 6, 0.25), real=(1000, 50, 5.0))
async def test_pl_12_with_the_sdk_as_it_is_all_are_served_about_in_their_order(
    open_house: OpenHouse, callers: int, most: int, hold_s: float
) -> None:
    with open_house(pool=f"ready = {most}, max = {most}") as house:
        house.full()
        served: list[tuple[float, int]] = []
        async with AsyncSandboxd(url=house.url) as client:

            async def rollout(number: int) -> None:
                sandbox = await client.lease("python")
                assert sandbox.granted is not None and sandbox.granted.leased_at is not None
                served.append((sandbox.granted.leased_at, number))
                await anyio.sleep(hold_s)
                await sandbox.release()

            async with anyio.create_task_group() as tasks:
                for number in range(callers):
                    tasks.start_soon(rollout, number)
                    await anyio.sleep(1 / callers)
        order = [number for _, number in sorted(served)]
        assert sorted(order) == list(range(callers))
        late = [abs(place - number) for place, number in enumerate(order)]
        assert max(late) <= 0.2 * callers, order
        house.empty(within_s=60)
        assert house.errors() == []


@contextmanager
def creating(house: House, *, every_s: float) -> Iterator[Counter[int]]:
    """Sandboxes are leased and given back all the while; yields how often with which answer."""
    answers: Counter[int] = Counter()

    async def one(http: httpx.AsyncClient) -> None:
        answer = await http.post("/v1/sandboxes", json={"template": "python"})
        answers[answer.status_code] += 1
        if answer.status_code == 201:
            await http.delete(f"/v1/sandboxes/{answer.json()['id']}")

    async def run(task_status: anyio.abc.TaskStatus[None]) -> None:
        async with (
            httpx.AsyncClient(base_url=house.url, timeout=60) as http,
            anyio.create_task_group() as tasks,
        ):
            task_status.started()
            while not done.is_set():
                tasks.start_soon(one, http)
                with anyio.move_on_after(every_s):
                    await done.wait()

    with anyio.from_thread.start_blocking_portal() as portal:
        done = portal.call(anyio.Event)
        running, _ = portal.start_task(run)
        try:
            yield answers
        finally:
            portal.call(done.set)
            running.result(timeout=60)


@pytest.mark.requirement("PL-04")
@scaled(1 / 10)
def test_pl_04_refill_keeps_its_bounds_while_stock_is_killed_and_comes_back(
    open_house: OpenHouse, scale: float
) -> None:
    with open_house(pool=f"ready = 10, max = 40, starting = {_STARTING}") as house:
        house.full()
        over_at = time.monotonic() + 60 * scale
        with creating(house, every_s=1 / 5) as answers:
            while time.monotonic() < over_at:
                next_at = time.monotonic() + 2
                for box_id in sorted(house.living())[:5]:
                    with suppress(ProcessLookupError, AssertionError, ValueError):  # it is gone
                        house.kill(box_id)
                while time.monotonic() < next_at:
                    pool = house.pool()
                    assert pool["ready"] + pool["making"] <= 10 + _STARTING, pool
                    assert pool["making"] <= _STARTING
                    time.sleep(0.02)
        # A sandbox that is killed while it is handed over is a named loss, and no other answer is.
        assert set(answers) <= {201, 410}, answers
        assert answers[201] >= 5 * 60 * scale / 2
        house.full(within_s=30)
        eventually(lambda: len(house.boxes()) == 10, within_s=30, what="ten boxes are there")


def sizes(http: httpx.Client) -> list[tuple[int, int, int]]:
    """How large the pools may be."""
    pools = http.get("/v1/pools").json()["pools"]
    return [(pool["target"], pool["max"], pool["starting"]) for pool in pools]


@pytest.mark.requirement("PL-04")
@pytest.mark.parametrize("field", ["ready", "max", "starting"])
def test_pl_04_a_pool_of_a_million_is_refused(http: httpx.Client, field: str) -> None:
    before = sizes(http)
    told = problem(http.patch("/v1/pools/python", json={field: 10**6}), 422, "bad_request")
    assert field in told["detail"]
    assert sizes(http) == before
