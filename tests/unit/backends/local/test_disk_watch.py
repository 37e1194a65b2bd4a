"""Only what ran is measured again; where that is not known, what is quiet is measured less."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local.boxes import BoxRecord, BoxShelf
from sandboxd.backends.local.disk_watch import DiskWatch
from sandboxd.backends.local.living import LivingBox, Roster
from sandboxd.linux.cgroups import Cgroups, CgroupsV2, NoCgroups
from sandboxd.linux.processes import mark_process

pytestmark = pytest.mark.anyio

MB = 1_000_000
EVERY_S = 0.05
Watch = Callable[[Cgroups], AbstractAsyncContextManager[dict[str, LivingBox]]]


@pytest.fixture
def shelf(tmp_path: Path) -> BoxShelf:
    (tmp_path / "run").mkdir()
    shelf = BoxShelf(tmp_path / "state", tmp_path / "run", tag="t")
    shelf.open()
    return shelf


@pytest.fixture
def watch(shelf: BoxShelf) -> Watch:
    """Watch two boxes of which only the files are real: their first process is this one."""

    @asynccontextmanager
    async def watching(groups: Cgroups) -> AsyncIterator[dict[str, LivingBox]]:
        async with anyio.create_task_group() as tasks:
            roster = Roster(tasks, shelf, groups)
            for name in ("box-a", "box-b"):
                record = BoxRecord(
                    box_id=name,
                    labels={},
                    disk_limit_bytes=1 << 40,
                    memory_limit_bytes=1 << 30,
                    process=mark_process(os.getpid(), pid_ns=0),
                )
                shelf.create(record)
                roster.add(record, os.pidfd_open(os.getpid()))
            tasks.start_soon(DiskWatch(roster, shelf, groups, every_s=EVERY_S).run)
            yield {box.box_id: box for box in roster.living()}
            tasks.cancel_scope.cancel()

    return watching


@pytest.fixture
def groups(tmp_path: Path) -> CgroupsV2:
    """Groups of version 2 on a plain directory, with one for each box."""
    base = tmp_path / "groups"
    for directory in (base, base / "level"):
        directory.mkdir()
        (directory / "cgroup.controllers").write_text("cpu memory pids")
        (directory / "cgroup.subtree_control").write_text("cpu memory pids")
    for name in ("box-a", "box-b"):
        (base / "level" / name).mkdir()
        (base / "level" / name / "cpu.stat").write_text("usage_usec 1\n")
    return CgroupsV2(base, "level")


def write(shelf: BoxShelf, box_id: str, name: str) -> None:
    (shelf.places(box_id).run / name).write_bytes(b"x" * MB)


async def reads(box: LivingBox, least: int) -> None:
    with anyio.fail_after(10):
        while (box.disk_bytes or 0) < least:  # noqa: ASYNC110
            await anyio.sleep(0.005)


async def test_what_used_no_processor_time_is_not_measured_again(
    shelf: BoxShelf, groups: CgroupsV2, watch: Watch, tmp_path: Path
) -> None:
    usage = tmp_path / "groups" / "level"
    async with watch(groups) as boxes:
        for box in boxes.values():
            await reads(box, 1)
        write(shelf, "box-a", "file")
        for number in (1, 2):  # the second time, a whole round has gone by
            write(shelf, "box-b", f"file{number}")
            (usage / "box-b" / "cpu.stat").write_text(f"usage_usec {number + 1}\n")
            await reads(boxes["box-b"], number * MB)
        assert (boxes["box-a"].disk_bytes or 0) < MB
        (usage / "box-a" / "cpu.stat").write_text("usage_usec 2\n")
        await reads(boxes["box-a"], MB)


async def test_without_groups_what_a_quiet_box_writes_is_found_all_the_same(
    shelf: BoxShelf, watch: Watch
) -> None:
    async with watch(NoCgroups("none")) as boxes:
        for number in (1, 2, 3):
            write(shelf, "box-b", f"file{number}")
            await reads(boxes["box-b"], number * MB)
        write(shelf, "box-a", "file")
        await reads(boxes["box-a"], MB)


async def test_what_was_deleted_counts_for_as_long_as_it_is_held(
    shelf: BoxShelf, watch: Watch
) -> None:
    async with watch(NoCgroups("none")) as boxes:
        place = shelf.places("box-a").run / "gone"
        with place.open("wb") as held:
            place.unlink()
            held.write(b"x" * MB)
            held.flush()
            os.fsync(held.fileno())
            await reads(boxes["box-a"], MB)
        with anyio.fail_after(10):
            while (boxes["box-a"].disk_bytes or 0) >= MB:  # noqa: ASYNC110
                await anyio.sleep(0.005)
