"""Loads that mean harm: they end at the box's own limits, with a cause; the neighbour works on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
import docker
import pytest

from sandboxd.backends.docker import DockerBackend
from sandboxd.errors import SandboxdError
from sandboxd.guest import GuestLost
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import EndReason, Fault, Outcome
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, spec
from tests.support.hostile import Target, image_with, target, until

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(180)]

_MB = 1 << 20
_DISK_MB = 24
_TYPED_S = 15.0
_NEIGHBOUR_S = 2.0

# Written in pieces, so that a limit is met while it goes on; holds what it has until it is ended.
UNLINKED = """
import os, time
file = os.open("gone", os.O_RDWR | os.O_CREAT); os.unlink("gone")
for _ in range(40): os.write(file, bytes(1 << 20))
os.fsync(file); time.sleep(60)
"""
MAPPED = """
import mmap, os, time
file = os.open("gone", os.O_RDWR | os.O_CREAT); os.unlink("gone")
for _ in range(40): os.write(file, bytes(1 << 20))
os.fsync(file); view = mmap.mmap(file, 4096); os.close(file); time.sleep(60)
"""
EMPTY = """
import os, time
os.mkdir("many"); os.chdir("many")
for number in range(9000): os.close(os.open(str(number), os.O_CREAT))
time.sleep(60)
"""
HELD = """
held = []
for _ in range(400): held.append(bytearray(b"x" * (1 << 20)))
"""
# A double fork, and its middle one gone at once: what is left is the first process's to reap.
ORPHANS = """
import os, time
for _ in range(500):
    child = os.fork()
    if child == 0:
        if os.fork() == 0: time.sleep(0.05)
        os._exit(0)
    os.waitpid(child, 0)
"""
ZOMBIES = "grep -sh ^State: /proc/[0-9]*/status | grep -c Z"


@pytest.fixture
async def backend(engine_host: EngineHost) -> AsyncIterator[DockerBackend]:
    """A backend that measures often."""
    async with backend_on(engine_host.host, disk_every_s=0.5) as opened:
        yield opened


@pytest.fixture
def hostile(engine_host: EngineHost) -> BoxSpec:
    small = spec(engine_host.image)
    limits = replace(small.resources, memory_mb=256, pids=96, disk_mb=_DISK_MB)
    return replace(small, resources=limits)


@pytest.fixture
def client(engine_host: EngineHost) -> Iterator[Any]:
    opened = docker.APIClient(base_url=engine_host.host, version="1.41")
    yield opened
    opened.close()


def python(text: str) -> str:
    return f"exec python3 - <<'END'\n{text}\nEND"


async def ends_by_disk(victim: Target, load: str) -> None:
    with anyio.fail_after(60):
        async with victim.backend.watch() as deaths, anyio.create_task_group() as tasks:
            tasks.start_soon(_suffer, victim, load)
            death = await anext(deaths)
            tasks.cancel_scope.cancel()
    assert (death.box_id, death.reason) == (victim.box.box_id, EndReason.DISK)
    assert (death.fault, death.mask) == (Fault.AGENT, False)
    assert int(death.evidence["disk_bytes"] or 0) > _DISK_MB * _MB


async def _suffer(victim: Target, load: str) -> None:
    with suppress(SandboxdError, GuestLost):  # the end comes while it runs
        await victim.run(load, timeout_s=50)


@pytest.mark.parametrize(
    "load",
    [
        "head -c 40000000 /dev/zero > /fill; sleep 60",
        "head -c 40000000 /dev/zero > /var/tmp/fill; sleep 60",
        "head -c 40000000 /dev/zero > /run/guest/fill; sleep 60",
        "fallocate -l 40M /fill; sleep 60",
        python(UNLINKED),
        python(MAPPED),
        python(EMPTY),
    ],
    ids=["layer", "tmp", "shared", "allocated", "unlinked", "mapped", "empty"],
)
async def test_whoever_fills_the_disk_ends_by_it_wherever_they_write(
    backend: DockerBackend, hostile: BoxSpec, load: str
) -> None:
    async with target(backend, hostile) as victim:
        await ends_by_disk(victim, load)


async def test_what_is_written_to_an_images_volume_counts(
    backend: DockerBackend, hostile: BoxSpec, client: Any
) -> None:
    before = client.volumes()["Volumes"] or []
    async with image_with(client, hostile.image, "VOLUME /data") as image:
        async with target(backend, replace(hostile, image=image, pull="never")) as victim:
            await ends_by_disk(victim, "head -c 40000000 /dev/zero > /data/fill; sleep 60")
        assert (client.volumes()["Volumes"] or []) == before


async def test_holes_second_names_and_memory_are_not_taken_for_disk(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    async with target(backend, hostile) as box:
        record = await box.run(
            "truncate -s 4G /hole; head -c 9000000 /dev/zero > /one;"
            " for n in 1 2 3 4 5; do ln /one /name$n; done;"
            " head -c 40000000 /dev/zero > /dev/shm/x"
        )
        assert record.exit_code == 0

        async def measured() -> bool:
            return ((await backend.read(box.box)).disk_bytes or 0) > 9_000_000

        await until(measured, within_s=20)
        assert ((await backend.read(box.box)).disk_bytes or 0) < 12_000_000
        assert await backend.look(box.box) is None


async def test_shared_memory_counts_as_memory_and_has_its_own_end(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    async with target(backend, replace(hostile, shm_mb=100)) as box:
        before = (await backend.read(box.box)).memory_bytes or 0
        said = await box.says("head -c 200000000 /dev/zero > /dev/shm/x; wc -c < /dev/shm/x")
        assert "No space left" in said
        assert str(100 * _MB) in said
        assert ((await backend.read(box.box)).memory_bytes or 0) - before > 90 * _MB
        assert await backend.look(box.box) is None


@asynccontextmanager
async def attacked(
    backend: DockerBackend, hostile: BoxSpec, load: str
) -> AsyncIterator[tuple[Target, Target]]:
    """A box under load, and its neighbour."""
    async with target(backend, hostile) as neighbour, target(backend, hostile) as victim:
        await victim.start(load)
        yield victim, neighbour


async def latency(box: Target, *, within_s: float, rounds: int = 10) -> None:
    """Commands answer in time, again and again."""
    for _ in range(rounds):
        with anyio.fail_after(within_s):
            record = await box.run("true")
        assert record.exit_code == 0


async def usable_or_typed_dead(box: Target) -> None:
    """Once the load has ended: a command runs, or the end has a name and is the agent's."""
    await box.guest.kill_all()

    async def settled() -> bool:
        if (death := await box.backend.look(box.box)) is not None:
            assert (death.fault, death.mask) == (Fault.AGENT, False), death
            return True
        with suppress(GuestLost, SandboxdError):
            return (await box.run("true")).outcome is Outcome.EXITED
        return False

    await until(settled, within_s=_TYPED_S)


async def test_a_fork_bomb_ends_at_its_limit_and_its_sandbox_is_usable(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    async with attacked(backend, hostile, "bomb() { bomb & bomb & sleep 20; }; bomb") as (
        victim,
        neighbour,
    ):
        limit = hostile.resources.pids

        async def full() -> bool:
            return ((await victim.guest.readings()).pids or 0) >= limit

        await until(full, within_s=_TYPED_S)
        await latency(neighbour, within_s=_NEIGHBOUR_S)
        record = await victim.run("true")
        assert record.outcome is Outcome.EXITED or record.reason is not None
        await usable_or_typed_dead(victim)


async def test_a_memory_storm_is_told_as_that_and_its_sandbox_is_usable(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    storm = f"for n in 1 2 3 4 5 6 7 8; do python3 -c '{HELD}' & done; wait"
    async with attacked(backend, hostile, storm) as (victim, neighbour):
        await latency(neighbour, within_s=_NEIGHBOUR_S)

        async def counted() -> bool:
            return ((await backend.read(victim.box)).oom_kills or 0) > 0

        await until(counted, within_s=_TYPED_S)
        await usable_or_typed_dead(victim)


async def test_whoever_offers_the_guest_to_the_kernel_gets_no_rollout_masked(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    aimed = (
        "echo 1000 > /proc/1/oom_score_adj; for n in 1 2 3 4 5 6; do python3 -c"
        " 'import time; held = bytearray(b\"x\" * (20 << 20)); time.sleep(20)' & done; sleep 1;"
        f" exec python3 -c '{HELD}'"
    )
    async with target(backend, hostile) as victim, backend.watch() as deaths:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_look_always, victim)
                await victim.start(aimed)
                death = await anext(deaths)
                tasks.cancel_scope.cancel()
    assert (death.reason, death.fault, death.mask) == (EndReason.OOM, Fault.AGENT, False), death


async def _look_always(box: Target) -> None:
    """Readings taken while the end goes on must not hide it."""
    while True:
        await box.backend.read(box.box)
        await anyio.sleep(0.002)


async def test_a_box_without_a_turn_of_its_own_still_answers(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    busy = "for n in 1 2 3 4 5 6 7 8; do yes > /dev/null & done; wait"
    async with attacked(backend, hostile, busy) as (victim, neighbour):
        await latency(victim, within_s=5, rounds=3)
        with anyio.fail_after(1):
            await backend.look(victim.box)
            await backend.read(victim.box)
        await latency(neighbour, within_s=_NEIGHBOUR_S)


async def test_orphans_are_reaped(backend: DockerBackend, hostile: BoxSpec) -> None:
    async with target(backend, hostile) as box:
        assert (await box.run(python(ORPHANS), timeout_s=60)).exit_code == 0
        record = await box.run("n=0; while [ $n -lt 500 ]; do (sleep 0.01 &); n=$((n+1)); done")
        assert record.outcome is Outcome.EXITED

        async def reaped() -> bool:
            return int(await box.says(ZOMBIES)) <= 10

        await until(reaped, within_s=5)


async def test_a_flood_of_connections_from_inside_shuts_nobody_out(
    backend: DockerBackend, hostile: BoxSpec
) -> None:
    flood = """
import os, socket
for _ in range(3): os.fork()
while True:
    held = []
    try:
        for _ in range(1500):
            line = socket.socket(socket.AF_UNIX); line.setblocking(False); held.append(line)
            line.connect("/run/guest/s.sock")
    except OSError: pass
"""
    async with attacked(backend, hostile, python(flood)) as (victim, neighbour):
        for _ in range(3):
            await victim.guest.drop_idle()  # each command comes by a line of its own
            await latency(victim, within_s=15, rounds=1)
        await latency(neighbour, within_s=_NEIGHBOUR_S)
