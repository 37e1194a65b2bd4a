"""Every guest killed just while the daemon is at a step: whoever waits gets a sandbox that lives, a
result that is true, or an error that is named and masks; nothing is left over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest

from sandboxd_client import (
    AsyncSandbox,
    AsyncSandboxd,
    ExecResult,
    SandboxdError,
    SandboxLost,
    StartFailed,
)
from tests.faults.steps.stage import Stage, local_stage
from tests.faults.yards import LocalYard
from tests.support.service import Service

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

CONFIG = """
[templates.python]
image = "host"
resources = {memory_mb = 128}
pool = {ready = 1, max = 8}
"""
COLD = {"memory_mb": 96}  # not the template's: made for this lease alone
YARD = LocalYard()

LEASING = [
    "after Spawned.release",
    "after BoxShelf.note_process",
    "after LocalBackend.make",
    "before Guest.claim",
    "after Guest.claim",
    "before SqliteStore.put",
    "after SqliteStore.put",
    "after Granting.lease",
]
USING = {
    "run": ["before Guest.run", "after Guest.run", "after Commands.run"],
    "renew": ["before Guest.renew", "after Guest.renew", "after SqliteStore.put"],
    "release": [
        "before Desk.release",
        "before Endings.end",
        "before LocalBackend.read",
        "before SqliteStore.put",
        "before LocalBackend.dispose",
        "before Remover._clear",
    ],
    "grade": ["before Guest.kill_all", "before Guest.renew", "before SqliteStore.put"],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all: each test leaves it at rest."""
    with local_stage(tmp_path_factory.mktemp("stage"), config=CONFIG) as stage:
        yield stage


def kill_all(service: Service) -> None:
    """Every box that has a guest, stock too."""
    for box_id in YARD.box_ids(service):
        with YARD.guest(service, box_id) as guest:
            if guest is not None:
                guest.send(signal.SIGKILL)


@pytest.mark.parametrize("resources", [None, COLD], ids=["warm", "cold"])
@pytest.mark.parametrize("step", LEASING)
async def test_guests_killed_while_a_lease_is_granted(
    stage: Stage, step: str, resources: dict[str, int] | None
) -> None:
    async def act(client: AsyncSandboxd) -> AsyncSandbox:
        return await client.lease("python", resources=resources)

    came = await stage.upset_during(act, step, partial(kill_all, stage.service))
    if isinstance(came, SandboxdError):
        _check_named(came)
        await stage.settle()
    else:
        await _look_at_it(stage, came)


async def _look_at_it(stage: Stage, granted: AsyncSandbox) -> None:
    """It lives, or says that it died."""
    try:
        assert await stage.use(granted.id, _says_hello)
    except SandboxLost as error:
        _check_named(error)
        await stage.settle()
    else:
        await stage.settle(held=1)


@pytest.mark.parametrize(("act", "step"), [(act, step) for act in USING for step in USING[act]])
async def test_guests_killed_while_a_lease_is_used(stage: Stage, act: str, step: str) -> None:
    sandbox_id = await stage.sandbox(timeout_s=300)

    async def use(client: AsyncSandboxd) -> ExecResult | None:
        sandbox = client.sandbox(sandbox_id)
        match act:
            case "run":
                return await sandbox.exec("echo hello")
            case "renew":
                await sandbox.renew(400)
            case "grade":
                await sandbox.begin_grading(60)
            case _:
                await sandbox.release(wait_s=10)
        return None

    came = await stage.upset_during(use, step, partial(kill_all, stage.service))
    if isinstance(came, SandboxdError):
        _check_named(came)
    elif came is not None:
        assert (came.outcome, came.exit_code, came.stdout) == ("exited", 0, "hello\n")
    with pytest.raises(SandboxdError) as caught:
        await stage.use(sandbox_id, _says_hello)
    assert caught.value.mask or act == "release"
    info = await stage.use(sandbox_id, lambda sandbox: sandbox.info())
    assert info.end is not None
    assert (info.end.reason, info.end.mask) in {("died", True), ("released", False)}
    assert info.end.reason == "died" or act == "release"
    await stage.settle()


async def _says_hello(sandbox: AsyncSandbox) -> bool:
    return (await sandbox.exec("echo hello")).stdout == "hello\n"


def _check_named(error: SandboxdError) -> None:
    assert isinstance(error, (SandboxLost, StartFailed)), error
    assert error.mask
