"""Groups of version 2, on a directory that behaves like the kernel's as far as files go."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.linux.cgroups import CgroupsV2, NoCgroups
from sandboxd.model.template import Resources


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    level = tmp_path / "level"
    level.mkdir()
    (level / "cgroup.controllers").write_text("cpu memory pids")
    (level / "cgroup.subtree_control").write_text("")
    box = level / "box"
    box.mkdir()
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"):
        (box / name).touch()  # the kernel's part
    return tmp_path


def test_limits_are_written_in_the_units_of_version_2(base: Path) -> None:
    groups = CgroupsV2(base, "level")
    groups.create("box", Resources(cpu=1.5, memory_mb=64, pids=100))
    box = base / "level" / "box"
    assert (box / "memory.max").read_text() == str(64 << 20)
    assert (box / "cpu.max").read_text() == "150000 100000"
    assert int((box / "pids.max").read_text()) >= 100
    assert groups.entrances("box") == [box / "cgroup.procs"]


def test_all_together_leave_process_numbers_to_the_machine(base: Path) -> None:
    (base / "level" / "pids.max").touch()
    CgroupsV2(base, "level")
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 0.8 * most < int((base / "level" / "pids.max").read_text()) < most


def test_all_together_yield_to_others_and_among_themselves_weigh_what_they_may_use(
    base: Path,
) -> None:
    (base / "level" / "cpu.weight").touch()
    CgroupsV2(base, "level").create("box", Resources(cpu=1.5))
    assert (base / "level" / "cpu.weight").read_text() == "10"  # others have 100
    assert (base / "level" / "box" / "cpu.weight").read_text() == "150"


def test_a_kernel_that_does_not_weigh_groups_is_fine(base: Path) -> None:
    (base / "level" / "box" / "cpu.weight").unlink()
    CgroupsV2(base, "level").create("box", Resources())
    assert not (base / "level" / "box" / "cpu.weight").exists()


def test_children_are_given_controllers(base: Path) -> None:
    CgroupsV2(base, "level")
    assert (base / "level" / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_readings_come_from_the_groups_own_files(base: Path) -> None:
    groups = CgroupsV2(base, "level")
    groups.create("box", Resources())
    box = base / "level" / "box"
    (box / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (box / "memory.current").write_text("100\n")
    (box / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    readings = groups.read("box")
    assert (readings.cpu_s, readings.memory_bytes, readings.oom_kills) == (2.5, 100, 2)
    assert readings.memory_peak_bytes is None


def test_a_kernel_that_does_not_count_swap_is_fine(base: Path) -> None:
    (base / "level" / "box" / "memory.swap.max").unlink()
    CgroupsV2(base, "level").create("box", Resources())
    assert not (base / "level" / "box" / "memory.swap.max").exists()


def test_a_group_that_is_gone_reads_as_nothing(base: Path) -> None:
    readings = CgroupsV2(base, "level").read("never")
    assert (readings.cpu_s, readings.oom_kills) == (None, None)


def test_a_missing_controller_is_an_error_and_no_half_limit(base: Path) -> None:
    (base / "cgroup.controllers").write_text("cpu pids")
    with pytest.raises(OSError, match="memory"):
        CgroupsV2(base, "level")


def test_without_groups_nothing_is_pretended() -> None:
    groups = NoCgroups("why")
    groups.create("box", Resources())
    assert groups.binds("box") == []
    assert groups.remove("box")
