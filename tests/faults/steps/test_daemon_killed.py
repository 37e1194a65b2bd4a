"""The daemon killed at each step of each act: whoever asks again hears the truth, nothing ran
twice, nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from sandboxd_client import AsyncSandbox, AsyncSandboxd, Ended, ExecResult, NotFound, Stdout
from tests.faults.steps.stage import Stage, local_stage

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

CONFIG = """
[templates.python]
image = "host"
resources = {memory_mb = 128}
pool = {ready = 1, max = 8}
"""
COLD = {"memory_mb": 96}  # not the template's: made for this lease alone
SCRIPT = "echo ran >> /workspace/ran; echo one; sleep 0.3; echo two; exit 7"
MARK = "cat /workspace/used /tmp/used 2>/dev/null; echo yes | tee /workspace/used /tmp/used"

MAKING = [
    "before LocalBackend.make",
    "before BoxShelf.create",
    "after BoxShelf.create",
    "before Launcher.spawn",
    "after Launcher.spawn",
    "before BoxShelf.note_process",
    "after BoxShelf.note_process",
    "before Spawned.release",
    "after Spawned.release",
    "after LocalBackend.make",
]
GRANTING = [
    "before Granting.lease",
    "before Guest.claim",
    "after Guest.claim",
    "before SqliteStore.put",
    "after SqliteStore.put",
    "after Granting.lease",
]
RUNNING = ["before Commands.run", "before Guest.run", "after Guest.run", "after Commands.run"]
RENEWING = [
    "before Desk.renew",
    "before Guest.renew",
    "after Guest.renew",
    "before SqliteStore.put",
    "after SqliteStore.put",
    "after Desk.renew",
]
GRADING = [
    "before Desk.begin_grading",
    "before Guest.kill_all",
    "after Guest.kill_all",
    "before Guest.renew",
    "after Guest.renew",
    "before SqliteStore.put",
    "after SqliteStore.put",
    "after Desk.begin_grading",
]
RELEASING = [
    "before Desk.release",
    "before Endings.end",
    "after Endings.end",
    "before LocalBackend.read",
    "before SqliteStore.put",
    "after SqliteStore.put",
    "after Desk.release",
    "before LocalBackend.dispose",
    "before Remover._clear",
    "after Remover._clear",
    "after LocalBackend.dispose",
]
ADOPTING = [
    "before Adoption._take_back",
    "after Adoption._take_back",
    "before Adoption._take_in",
    "after Adoption._take_in",
]

FORGETTING = [
    "before Desk.forget",
    "before SqliteStore.forget",
    "after SqliteStore.forget",
    "after Desk.forget",
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all: each test leaves it at rest, with whichever daemon came last."""
    with local_stage(tmp_path_factory.mktemp("stage"), config=CONFIG) as stage:
        yield stage


@pytest.mark.parametrize("key", [None, pytest.param("warm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", GRANTING)
async def test_killed_while_it_grants_stock(stage: Stage, step: str, key: str | None) -> None:
    async def act(client: AsyncSandboxd) -> AsyncSandbox:
        return await client.lease("python", idempotency_key=_own(key, step))

    granted = await stage.die_during(act, step)
    assert await stage.use(granted.id, _is_fresh)
    await stage.settle(held=1)


@pytest.mark.parametrize("key", [None, pytest.param("cold", marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [*MAKING, *GRANTING])
async def test_killed_while_it_makes_for_a_lease(stage: Stage, step: str, key: str | None) -> None:
    async def act(client: AsyncSandboxd) -> AsyncSandbox:
        return await client.lease("python", resources=COLD, idempotency_key=_own(key, step))

    granted = await stage.die_during(act, step)
    assert await stage.use(granted.id, _is_fresh)
    await stage.settle(held=1)


@pytest.mark.parametrize("step", RUNNING)
async def test_killed_while_it_runs_a_command(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> ExecResult:
        return await client.sandbox(sandbox_id).exec(SCRIPT)

    _check(await stage.die_during(act, step))
    await _ran_once(stage, sandbox_id)


@pytest.mark.parametrize("step", RUNNING)
async def test_killed_while_it_starts_a_command(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> ExecResult:
        process = await client.sandbox(sandbox_id).start(SCRIPT, exec_id="job")
        return await process.wait()

    _check(await stage.die_during(act, step))
    await _ran_once(stage, sandbox_id)


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        ("before Commands.follow", 0),
        ("item Commands.follow", 0),
        ("item Commands.follow", 1),
        ("item Commands.follow", 2),
        ("item Commands.follow", 3),
    ],
)
async def test_killed_while_output_flows(stage: Stage, step: str, passes: int) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> tuple[bytes, list[ExecResult]]:
        seen = [event async for event in client.sandbox(sandbox_id).stream(SCRIPT)]
        said = b"".join(event.data for event in seen if isinstance(event, Stdout))
        return said, [event.result for event in seen if isinstance(event, Ended)]

    said, ends = await stage.die_during(act, step, passes=passes)
    assert said == b"one\ntwo\n"
    assert [(end.outcome, end.exit_code) for end in ends] == [("exited", 7)]
    await _ran_once(stage, sandbox_id)


@pytest.mark.parametrize("step", RENEWING)
async def test_killed_while_it_renews(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox(timeout_s=300)

    async def act(client: AsyncSandboxd) -> float:
        renewed = await client.sandbox(sandbox_id).renew(3000)
        assert renewed.expires_at is not None
        return renewed.expires_at - (renewed.leased_at or 0)

    assert 2990 < await stage.die_during(act, step) < 3100
    info = await stage.use(sandbox_id, lambda sandbox: sandbox.info())
    assert (info.expires_at or 0) - (info.leased_at or 0) > 2990
    await stage.settle(held=1)


@pytest.mark.parametrize("step", GRADING)
async def test_killed_while_it_begins_to_grade(stage: Stage, step: str) -> None:
    """By the lease's own clock: so the next daemon has to begin it by itself."""
    sandbox_id = await stage.sandbox(timeout_s=1.5, grading_s=300)
    running = await stage.use(sandbox_id, lambda sandbox: sandbox.start("sleep 100"))

    async def act(client: AsyncSandboxd) -> None:
        sandbox = client.sandbox(sandbox_id)
        with anyio.fail_after(30):
            while (info := await sandbox.info()).phase != "grading":
                assert info.state == "leased"
                await anyio.sleep(0.05)
        assert (await sandbox.process(running.exec_id).wait(timeout_s=10)).outcome == "killed"
        assert (await sandbox.exec("echo graded")).stdout == "graded\n"
        info = await sandbox.info()
        assert (info.expires_at or 0) - (info.leased_at or 0) > 290

    await stage.die_during(act, step)
    await stage.settle(held=1)


@pytest.mark.parametrize("step", RELEASING)
async def test_killed_while_it_releases(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> str | None:
        info = await client.sandbox(sandbox_id).release(wait_s=10)
        return info.end.reason if info.end is not None else None

    assert await stage.die_during(act, step) == "released"
    info = await stage.use(sandbox_id, lambda sandbox: sandbox.info())
    assert info.end is not None
    assert (info.end.reason, info.end.mask) == ("released", False)
    await stage.settle()


@pytest.mark.parametrize("step", ADOPTING)
async def test_killed_while_it_takes_back_what_it_had(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()
    process = await stage.use(sandbox_id, lambda sandbox: sandbox.start(SCRIPT))
    await stage.stocked()  # so that there is somebody's box to take back, and nobody's
    stage.service.kill()
    for _ in range(2):
        stage.service.signpost.put(step)
        stage.service.start_and_die()
    stage.service.start()
    _check(await stage.use(sandbox_id, lambda one: one.process(process.exec_id).wait()))
    await _ran_once(stage, sandbox_id)


@pytest.mark.parametrize("step", ["before Guest.open_shell", "after Guest.open_shell"])
async def test_killed_while_it_opens_a_shell(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> str:
        shell = await client.sandbox(sandbox_id).shell(cwd="/tmp")
        return (await shell.run("pwd")).stdout

    assert await stage.die_during(act, step) == "/tmp\n"
    await stage.settle(held=1)


@pytest.mark.parametrize("step", ["before Guest.run_in_shell", "after Guest.run_in_shell"])
async def test_killed_while_a_shell_runs_a_text(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> list[ExecResult]:
        shell = await client.sandbox(sandbox_id).shell()
        text = SCRIPT.replace("exit 7", "count=$((count + 1)); (exit 7)")
        return [await shell.run(text), await shell.run("echo $count")]

    result, count = await stage.die_during(act, step)
    _check(result)
    assert count.stdout == "1\n"
    await _ran_once(stage, sandbox_id)


@pytest.mark.parametrize("step", FORGETTING)
async def test_killed_while_it_forgets_what_ended_long_ago(stage: Stage, step: str) -> None:
    kept, old = await stage.sandbox(), await stage.sandbox()
    await stage.use(old, lambda sandbox: sandbox.release(wait_s=10))
    stage.service.kill()
    with stage.service.hurried():
        stage.service.signpost.put(step)
        stage.service.start()
        stage.service.await_death()
        stage.service.start()
    with anyio.fail_after(20):
        while await _is_known(stage, old):  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.05)
    assert await _is_known(stage, kept)
    stage.service.kill()
    stage.service.start()
    assert not await _is_known(stage, old)
    assert await _is_known(stage, kept)
    await stage.settle(held=1)


def _own(key: str | None, step: str) -> str | None:
    return key and f"{key}-{step.replace(' ', '-')}"


async def _is_known(stage: Stage, sandbox_id: str) -> bool:
    try:
        await stage.use(sandbox_id, lambda sandbox: sandbox.info())
    except NotFound:
        return False
    return True


async def _is_fresh(sandbox: AsyncSandbox) -> bool:
    return (await sandbox.exec(MARK)).stdout == "yes\n"


def _check(result: ExecResult) -> None:
    told = (result.outcome, result.exit_code, result.stdout, result.mask)
    assert told == ("exited", 7, "one\ntwo\n", False)


async def _ran_once(stage: Stage, sandbox_id: str) -> None:
    ran = await stage.use(sandbox_id, lambda sandbox: sandbox.files.read("/workspace/ran"))
    assert ran == b"ran\n"
    await stage.settle(held=1)
