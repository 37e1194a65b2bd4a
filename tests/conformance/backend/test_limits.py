"""Limits that a backend says it holds, it holds; the box next door does not notice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef, LimitKind
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestLost
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import EndReason, Fault, Outcome
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio

HOG = "x=$(head -c 400000000 /dev/zero | tr '\\0' x); echo ${#x}"
# Holds what it could fork, and says how many that was; never more than it was told to.
FORKS = "n=0; while [ $n -lt 400 ]; do (sleep 5) & n=$((n+1)); done 2>/dev/null; jobs | wc -l"


def need(backend: Backend, limit: str, *kinds: LimitKind) -> None:
    capabilities = backend.capabilities()
    if capabilities.limits[limit] not in kinds:
        pytest.skip(f"{backend.name} here has {limit}: {capabilities.limits[limit]}")
    if capabilities.programs != "any":
        pytest.skip(f"{backend.name} runs scripted programs only")


async def run(backend: Backend, box: BoxRef, script: str) -> ExecRecord:
    guest = Guest(lambda: backend.connect(box))
    try:
        await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=60, nproc=96))
        command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", script), timeout_s=30)
        return await guest.run(command, wait=True)
    finally:
        await guest.aclose()


async def test_a_memory_hog_dies_of_oom_and_the_box_lives(backend: Backend, spec: BoxSpec) -> None:
    need(backend, "memory", LimitKind.ENFORCED)
    small = replace(spec, resources=replace(spec.resources, memory_mb=96))
    with anyio.fail_after(60):
        box = await backend.make(order(small))
        record = await run(backend, box, HOG)
        assert await backend.look(box) is None
    assert record.outcome in {Outcome.OOM, Outcome.EXITED}
    assert record.oom_kills > 0 or record.outcome is Outcome.OOM
    assert record.exit_code != 0


async def test_forks_end_at_the_limit_and_the_box_lives(backend: Backend, spec: BoxSpec) -> None:
    need(backend, "pids", LimitKind.ENFORCED)
    small = replace(spec, resources=replace(spec.resources, pids=96))
    with anyio.fail_after(60):
        box = await backend.make(order(small))
        record = await run(backend, box, FORKS)
        assert await backend.look(box) is None
    # A shell that cannot fork gives up, or tries until it is out of time.
    assert (record.outcome, record.exit_code) != (Outcome.EXITED, 0)


async def test_a_box_over_its_disk_ends_with_the_reading(backend: Backend, spec: BoxSpec) -> None:
    need(backend, "disk", LimitKind.WATCHED)
    small = replace(spec, resources=replace(spec.resources, disk_mb=16))
    with anyio.fail_after(60):
        box = await backend.make(order(small))
        async with backend.watch() as deaths, anyio.create_task_group() as group:
            group.start_soon(_fill, backend, box)
            death = await anext(deaths)
            group.cancel_scope.cancel()
    assert (death.box_id, death.reason) == (box.box_id, EndReason.DISK)
    assert (death.fault, death.mask) == (Fault.AGENT, False)
    assert death.evidence["disk_limit_bytes"] == 16 << 20


async def _fill(backend: Backend, box: BoxRef) -> None:
    with suppress(
        SandboxdError, GuestLost
    ):  # it dies under the call, which is what the test waits for
        await run(backend, box, "head -c 64000000 /dev/zero > big; sleep 30")
