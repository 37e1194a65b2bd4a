"""The doctor looks at everything, tells each gap with its mend, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from anyio import to_thread

from sandboxd.backends.local import LocalBackend, LocalSettings
from sandboxd.backends.local.doctor import probe
from sandboxd.backends.parts.findings import Finding
from sandboxd.backends.protocol import BoxRef
from tests.integration.local.conftest import order, sh

pytestmark = pytest.mark.anyio


async def examine(settings: LocalSettings, *, max_sandboxes: int = 8) -> dict[str, Finding]:
    found = await to_thread.run_sync(lambda: probe(settings, max_sandboxes=max_sandboxes))
    return {finding.name: finding for finding in found}


async def test_each_thing_is_looked_at_and_nothing_is_left(settings: LocalSettings) -> None:
    found = await examine(settings)
    assert {"user namespaces", "guest agent", "bubblewrap", "overlay", "control groups"} <= set(
        found
    )
    assert {"descriptors", "processes", "inotify", "socket paths", "disk"} <= set(found)
    assert all(finding.ok or finding.mend for finding in found.values())
    assert not settings.state_dir.exists()


async def test_what_many_sandboxes_need_is_computed(settings: LocalSettings) -> None:
    found = await examine(settings, max_sandboxes=100_000_000)
    assert not found["processes"].ok
    assert "100000000" in found["processes"].detail


async def test_a_long_run_directory_is_told_with_the_mend(settings: LocalSettings) -> None:
    far = settings.state_dir / ("x" * 120)
    found = await examine(replace(settings, run_dir=far))
    assert (found["socket paths"].ok, found["socket paths"].vital) == (False, True)


async def test_a_daemon_at_work_does_not_notice(
    settings: LocalSettings, backend: LocalBackend, box: BoxRef
) -> None:
    await examine(settings)
    assert await backend.look(box) is None
    other = await backend.make(order())
    assert (await sh(backend, other, "echo fine")).stdout.head == b"fine\n"
