"""One box of the local backend for each test, and a way to run text in it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local import LocalBackend, LocalSettings, open_local
from sandboxd.backends.protocol import BoxOrder, BoxRef
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Resources
from tests.conformance.conftest import MATRIX
from tests.support.local_traces import traces

Run = Callable[[str], Awaitable[str]]
SPEC = BoxSpec(image="host", resources=Resources(memory_mb=512, pids=128, disk_mb=512))


def order(spec: BoxSpec = SPEC) -> BoxOrder:
    return BoxOrder(box_id=new_id("box"), spec=spec, labels={"pool": "checks"})


@pytest.fixture
def settings(tmp_path: Path) -> LocalSettings:
    if gap := MATRIX["local"].missing():
        pytest.skip(gap)
    return LocalSettings(state_dir=tmp_path / "state", installation=new_id("t")[2:14])


@pytest.fixture
async def backend(settings: LocalSettings) -> AsyncIterator[LocalBackend]:
    async with open_local(settings) as opened:
        yield opened
        await dispose_all(opened)
    assert traces(settings) == []


async def dispose_all(backend: LocalBackend) -> None:
    with anyio.fail_after(60):
        for owned in await backend.list_owned():
            if owned.ref is not None:
                await backend.dispose(owned.ref)
            else:
                await backend.dispose_remains(owned.box_id)


@pytest.fixture
async def box(backend: LocalBackend) -> BoxRef:
    with anyio.fail_after(30):
        return await backend.make(order())


async def sh(backend: LocalBackend, box: BoxRef, text: str, *, user: str = "") -> ExecRecord:
    """Run shell text in a box that may be claimed or not."""
    guest = Guest(lambda: backend.connect(box))
    try:
        with anyio.fail_after(20):
            await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=600))
            words = ("/bin/sh", "-c", text)
            return await guest.run(
                Command(exec_id=new_id("exec"), argv=words, user=user, timeout_s=15), wait=True
            )
    finally:
        await guest.aclose()


async def _say(backend: LocalBackend, box: BoxRef, text: str) -> str:
    record = await sh(backend, box, text)
    return (record.stdout.head + record.stderr.head).decode()


@pytest.fixture
def run(backend: LocalBackend, box: BoxRef) -> Run:
    """Run shell text in the box: what it wrote, both streams."""
    return partial(_say, backend, box)


@pytest.fixture
def python(backend: LocalBackend) -> str:
    """A Python inside: the daemon's own where it is shown, else the system's."""
    if any("own is shown" in note for note in backend.capabilities().notes):
        return sys.executable
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no Python that a sandbox could see")
    return "/usr/bin/python3"
