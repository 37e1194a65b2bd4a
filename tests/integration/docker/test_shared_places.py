"""Shared memory and mounted folders in containers: as large and as writable as was said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.docker import DockerBackend
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Mount, Resources
from sandboxd.wire.codes import Outcome
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, order

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]

MIB = 1 << 20
_FILL = "dd if=/dev/zero of=/dev/shm/x bs=1M count={mib} 2>&1; stat -c %s /dev/shm/x"


async def run(backend: DockerBackend, spec: BoxSpec, script: str) -> ExecRecord:
    """Run it in a box of its own."""
    with anyio.fail_after(40):
        box = await backend.make(order(spec))
        guest = Guest(lambda: backend.connect(box))
        try:
            await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=60))
            command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", script), timeout_s=30)
            return await guest.run(command, wait=True)
        finally:
            await guest.aclose()
            await backend.dispose(box)


def spec_of(engine: EngineHost, *, memory_mb: int) -> BoxSpec:
    return BoxSpec(image=engine.image, resources=Resources(memory_mb=memory_mb, pids=64))


@pytest.mark.requirement("RL-07")
async def test_shared_memory_holds_what_data_loaders_need_and_counts_as_memory(
    engine_host: EngineHost,
) -> None:
    async with backend_on(engine_host.host) as backend:
        plain = await run(backend, spec_of(engine_host, memory_mb=512), _FILL.format(mib=200))
        assert plain.stdout.head.decode().endswith(f"{200 * MIB}\n")
        # As large as was asked for, and no way around the limit of memory.
        large = replace(spec_of(engine_host, memory_mb=96), shm_mb=512)
        over = await run(backend, large, f"df -m /dev/shm; {_FILL.format(mib=200)}")
        assert " 512 " in over.stdout.head.decode()
        assert over.oom_kills > 0 or over.outcome is Outcome.OOM


@pytest.mark.requirement("RL-07")
async def test_shared_memory_has_the_size_that_the_template_gives(engine_host: EngineHost) -> None:
    async with backend_on(engine_host.host) as backend:
        small = replace(spec_of(engine_host, memory_mb=128), shm_mb=8)
        record = await run(backend, small, _FILL.format(mib=20))
        assert "No space left on device" in record.stdout.head.decode()
        assert record.stdout.head.decode().endswith(f"{8 * MIB}\n")


async def test_a_mounted_folder_is_read_only_unless_it_says_otherwise(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    for name in ("given", "shared"):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name / "file").write_text(f"{name}\n")
    mounts = (
        Mount(source=str(tmp_path / "given"), target="/data/given"),
        Mount(source=str(tmp_path / "shared"), target="/data/shared", read_only=False),
    )
    spec = replace(spec_of(engine_host, memory_mb=128), mounts=mounts)
    script = "cd /data; cat given/file shared/file; touch given/new; touch shared/new; mount"
    async with backend_on(engine_host.host) as backend:
        record = await run(backend, spec, script)
    assert record.stdout.head.decode().startswith("given\nshared\n")
    assert b"Read-only file system" in record.stderr.head
    assert not (tmp_path / "given/new").exists()
    assert (tmp_path / "shared/new").exists()
