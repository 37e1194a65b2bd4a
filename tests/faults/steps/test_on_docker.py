"""The same on a container engine: the daemon killed at steps that only this backend has, and the
engine killed while the daemon is at a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd_client import AsyncSandbox, AsyncSandboxd, ExecResult, SandboxdError
from tests.faults.steps.stage import Stage, staged
from tests.support.docker_service import Containers, config_on
from tests.support.engine import TestEngine, engine, load_test_image, missing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.serial,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

COLD = {"memory_mb": 96, "pids": 64}  # not the template's: made for this lease alone
LEASING = [
    "before DockerBackend.make",
    "before Maker._create",
    "after Maker._create",
    "before Maker._meet_guest",
    "after DockerBackend.make",
    "after Guest.claim",
    "after SqliteStore.put",
]
RELEASING = [
    "before DockerBackend.dispose",
    "before Remover._remove_container",
    "after Remover._remove_container",
]
RUNNING = ["before Guest.run", "after Guest.run"]


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["plain", "live-restore"],
)
def own_engine(request: pytest.FixtureRequest) -> Iterator[tuple[TestEngine, str]]:
    """One that may be killed, and an image on it."""
    with engine(live_restore=request.param) as started:
        yield started, load_test_image(started, name="base")


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, own_engine: tuple[TestEngine, str]
) -> Iterator[Stage]:
    """One for all: each test leaves it at rest."""
    started, image = own_engine
    folder = tmp_path_factory.mktemp("stage")
    folder.chmod(0o711)
    config = config_on(started.host, image, pool="ready = 1, max = 8")
    with staged(folder, backend="docker", config=config) as service:
        containers = Containers(started.host, service)
        yield Stage(service, boxes=containers.box_ids, ready=1)
        service.end()
        assert containers.traces() == []


@pytest.mark.parametrize("step", LEASING)
async def test_daemon_killed_while_it_makes_for_a_lease(stage: Stage, step: str) -> None:
    granted = await stage.die_during(_lease, step)
    assert (await stage.use(granted.id, _say_hello)).stdout == "hello\n"
    await stage.settle(held=1)


@pytest.mark.parametrize("step", RELEASING)
async def test_daemon_killed_while_it_releases(stage: Stage, step: str) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> str | None:
        info = await client.sandbox(sandbox_id).release(wait_s=20)
        return info.end.reason if info.end is not None else None

    assert await stage.die_during(act, step) == "released"
    await stage.settle()


@pytest.mark.parametrize("step", [*LEASING, "before Guest.claim", "before SqliteStore.put"])
async def test_engine_killed_while_a_lease_is_granted(
    stage: Stage, own_engine: tuple[TestEngine, str], step: str
) -> None:
    came = await stage.upset_during(_lease, step, lambda: _break(own_engine[0]))
    if isinstance(came, SandboxdError):
        _check_named(came)
    else:
        await _check_alive_or_named(stage, came.id)
    await stage.settle(held=None)


@pytest.mark.parametrize("step", RUNNING)
async def test_engine_killed_while_a_command_runs(
    stage: Stage, own_engine: tuple[TestEngine, str], step: str
) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> ExecResult:
        return await _say_hello(client.sandbox(sandbox_id))

    came = await stage.upset_during(act, step, lambda: _break(own_engine[0]))
    if isinstance(came, SandboxdError):
        _check_named(came)
    else:
        assert (came.outcome, came.exit_code, came.stdout) == ("exited", 0, "hello\n")
    await _check_alive_or_named(stage, sandbox_id)
    await stage.settle(held=None)


@pytest.mark.parametrize("step", RELEASING)
async def test_engine_killed_while_a_sandbox_is_removed(
    stage: Stage, own_engine: tuple[TestEngine, str], step: str
) -> None:
    sandbox_id = await stage.sandbox()

    async def act(client: AsyncSandboxd) -> str | None:
        info = await client.sandbox(sandbox_id).release(wait_s=20)
        return info.end.reason if info.end is not None else None

    assert await stage.upset_during(act, step, lambda: _break(own_engine[0])) == "released"
    await stage.settle()


def _break(started: TestEngine) -> None:
    started.kill()
    started.start()


async def _lease(client: AsyncSandboxd) -> AsyncSandbox:
    return await client.lease("python", resources=COLD)


async def _say_hello(sandbox: AsyncSandbox) -> ExecResult:
    return await sandbox.exec("echo hello")


async def _check_alive_or_named(stage: Stage, sandbox_id: str) -> None:
    try:
        assert (await stage.use(sandbox_id, _say_hello)).stdout == "hello\n"
    except SandboxdError as error:
        _check_named(error)


def _check_named(error: SandboxdError) -> None:
    assert error.code in {"sandbox_lost", "start_failed", "backend_unavailable"}, error
    assert error.mask
    assert error.fault in {"infra", "unknown"}
