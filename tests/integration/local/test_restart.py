"""Boxes outlive the daemon that made them; whatever it died in the middle of is found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import anyio
import pytest

from sandboxd.backends.local import LocalSettings, open_local
from sandboxd.wire.codes import EndReason
from tests.integration.local.conftest import dispose_all, order, sh
from tests.support.local_traces import traces

pytestmark = pytest.mark.anyio

ENDLESS = """
import sys
from pathlib import Path
import anyio
from sandboxd.backends.local import LocalSettings, open_local
from tests.integration.local.conftest import order

async def main():
    settings = LocalSettings(state_dir=Path(sys.argv[1]), installation=sys.argv[2])
    async with open_local(settings) as backend, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(make, backend)

async def make(backend):
    while True:
        await backend.make(order())
        print("made", flush=True)

anyio.run(main)
"""


async def test_a_box_is_adopted_with_its_files_and_watched_again(settings: LocalSettings) -> None:
    with anyio.fail_after(60):
        async with open_local(settings) as first:
            box = await first.make(order())
            await sh(first, box, "echo kept > note")
        async with open_local(settings) as second:
            assert await second.look(box) is None
            assert (await sh(second, box, "cat note")).stdout.head == b"kept\n"
            async with second.watch() as deaths:
                os.kill(int(box.details["pid"]), signal.SIGKILL)
                death = await anext(deaths)
            assert (death.box_id, death.reason, death.mask) == (box.box_id, EndReason.DIED, True)
            assert await second.look(box) == death
            await dispose_all(second)
    assert_nothing_left(settings)


async def test_a_box_that_died_while_nobody_looked_is_told_dead(settings: LocalSettings) -> None:
    with anyio.fail_after(60):
        async with open_local(settings) as first:
            box = await first.make(order())
        os.kill(int(box.details["pid"]), signal.SIGKILL)
        async with open_local(settings) as second:
            while (death := await second.look(box)) is None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert death.mask
            (owned,) = await second.list_owned()
            assert not owned.alive
            await dispose_all(second)
    assert_nothing_left(settings)


async def test_another_process_with_the_same_pid_is_not_the_box(settings: LocalSettings) -> None:
    with anyio.fail_after(60):
        async with open_local(settings) as backend:
            box = await backend.make(order())
            await backend.dispose(box)
            bystander = await anyio.open_process(["sleep", "60"])
            try:
                forged = replace(box, details={**box.details, "pid": bystander.pid})
                assert await backend.look(forged) is not None
                await backend.dispose(forged)
                assert bystander.returncode is None
                os.kill(bystander.pid, 0)
            finally:
                bystander.kill()
                await bystander.wait()


@pytest.mark.requirement("CR-04")
@pytest.mark.parametrize("after", [0, 1, 5])
async def test_a_daemon_killed_while_it_makes_leaves_only_what_is_found(
    settings: LocalSettings, after: int
) -> None:
    daemon = start_endless(settings)
    try:
        for _ in range(after):
            assert await anyio.to_thread.run_sync(daemon.stdout.readline)  # type: ignore[union-attr]
        if not after:
            await a_box_begins(settings)
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()  # type: ignore[union-attr]
    with anyio.fail_after(60):
        async with open_local(settings) as second:
            owned = await second.list_owned()
            assert sum(box.alive for box in owned) >= after - 1
            await dispose_all(second)
            assert await second.list_owned() == []
    assert_nothing_left(settings)


def start_endless(settings: LocalSettings) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(settings.state_dir), settings.installation],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def a_box_begins(settings: LocalSettings) -> None:
    with anyio.fail_after(15):
        while not any((settings.state_dir / "boxes").glob("box-*/box.json")):  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def test_an_empty_installation_leaves_no_directory(settings: LocalSettings) -> None:
    async with open_local(settings):
        pass
    assert_nothing_left(settings)


def assert_nothing_left(settings: LocalSettings) -> None:
    assert traces(settings) == []
