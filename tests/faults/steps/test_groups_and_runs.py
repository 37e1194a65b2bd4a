"""The daemon killed at each step of what concerns several sandboxes: groups come whole or not at
all, and a run is kept, ended or lost as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import httpx
import pytest

from sandboxd_client import AsyncSandbox, AsyncSandboxd, NotFound
from tests.faults.steps.stage import Stage, local_stage

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

CONFIG = """
[templates.python]
image = "host"
resources = {memory_mb = 128}
pool = {ready = 1, max = 8}
"""
COUNT = 3
GROUPING = [
    ("before Groups.lease", 0),
    ("before Guest.claim", 0),
    ("after Guest.claim", 0),
    ("after Guest.claim", COUNT - 1),
    ("before SqliteStore.put_all", 0),
    ("after SqliteStore.put_all", 0),
    ("after Groups.lease", 0),
]
BEGINNING = [
    "before Runs.beat",
    "before SqliteStore.put_run",
    "after SqliteStore.put_run",
    "after Runs.beat",
]
ENDING = [
    "before Runs.forget",
    "before SqliteStore.forget_runs",
    "after SqliteStore.forget_runs",
    "after Runs.forget",
]
LOSING = [
    "before Runs._lose",
    "after Runs._lose",
    "before SqliteStore.put_run",
    "before SqliteStore.put",
    "before LocalBackend.dispose",
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all: each test leaves it at rest, with whichever daemon came last."""
    with local_stage(tmp_path_factory.mktemp("stage"), config=CONFIG) as stage:
        yield stage


@pytest.mark.parametrize("name", [None, pytest.param("g", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("step", "passes"), GROUPING)
async def test_killed_while_it_grants_a_group(
    stage: Stage, step: str, passes: int, name: str | None
) -> None:
    group_id = name and f"{name}-{step.replace(' ', '-')}-{passes}"

    async def act(client: AsyncSandboxd) -> list[AsyncSandbox]:
        return list(await client.group("python", count=COUNT, group_id=group_id))

    group = await stage.die_during(act, step, passes=passes)
    assert len({sandbox.id for sandbox in group}) == COUNT
    for sandbox in group:
        assert (await stage.use(sandbox.id, _hello)) == "hello"
    await stage.settle(held=COUNT)


@pytest.mark.parametrize("step", [*BEGINNING, *ENDING])
async def test_killed_while_a_run_begins_or_ends(stage: Stage, step: str) -> None:
    run_id = step.replace(" ", "-")

    async def act(client: AsyncSandboxd) -> str:
        async with client.run(run_id, ttl_s=60):
            sandbox = await client.lease("python", run_id=run_id)
            return await _hello(sandbox)

    assert await stage.die_during(act, step) == "hello"
    async with AsyncSandboxd(url=stage.service.url) as client:
        with pytest.raises(NotFound):
            await client.run(run_id).info()
    await stage.settle()


@pytest.mark.parametrize("step", LOSING)
async def test_killed_while_a_run_is_given_up(stage: Stage, step: str) -> None:
    run_id = f"lost-{step.replace(' ', '-')}"
    _beat_once(stage, run_id, ttl_s=2)
    sandbox_id = await stage.sandbox(run_id=run_id)

    async def act(client: AsyncSandboxd) -> str:
        with anyio.fail_after(40):
            while (info := await client.sandbox(sandbox_id).info()).end is None:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert info.end.mask
        return info.end.reason

    assert await stage.die_during(act, step) == "run_lost"
    async with AsyncSandboxd(url=stage.service.url) as client:
        assert (await client.run(run_id).info()).state == "lost"
        await client.run(run_id).end()
    await stage.settle()


def _beat_once(stage: Stage, run_id: str, *, ttl_s: float) -> None:
    url = f"{stage.service.url}/v1/runs/{run_id}/heartbeat"
    httpx.put(url, json={"ttl_s": ttl_s}, timeout=30).raise_for_status()


async def _hello(sandbox: AsyncSandbox) -> str:
    return (await sandbox.exec("echo hello")).stdout.strip()
