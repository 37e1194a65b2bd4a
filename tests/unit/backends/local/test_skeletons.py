"""What boxes share is laid out once, whole, and as each of them must see it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandboxd.backends.local.launching.skeletons import Skeleton, SkeletonShelf, lay_out

LAYOUT = lay_out(
    directories=["/proc", "/opt/a/b"], files=["/run/tool"], symlinks={"/bin": "usr/bin"}
)


@pytest.fixture
def shelf(tmp_path: Path) -> SkeletonShelf:
    shelf = SkeletonShelf(tmp_path / "skeletons", owner=None)
    shelf.open()
    return shelf


def place(shelf: SkeletonShelf, skeleton: Skeleton) -> Path:
    return shelf.directory / shelf.name(skeleton)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_place_and_what_leads_to_it_is_there(shelf: SkeletonShelf) -> None:
    shelf.ready(LAYOUT)
    top = place(shelf, LAYOUT)
    assert (top / "run" / "tool").is_file()
    assert (top / "bin").readlink() == Path("usr/bin")
    assert [mode(top / name) for name in ("", "opt/a", "opt/a/b", "root")] == [0o755] * 4
    assert [mode(top / name) for name in ("tmp", "var/tmp")] == [0o1777] * 2
    assert mode(top / "workspace") == 0o777


def test_the_second_to_need_one_finds_it(shelf: SkeletonShelf) -> None:
    shelf.ready(LAYOUT)
    before = place(shelf, LAYOUT).stat().st_ino
    shelf.ready(LAYOUT)
    assert place(shelf, LAYOUT).stat().st_ino == before
    assert len(list(shelf.directory.iterdir())) == 1


def test_another_layout_is_another_skeleton(shelf: SkeletonShelf) -> None:
    other = Skeleton(directories={"/": 0o755}, files={"/hosts": (b"x", 0o644)})
    shelf.ready(LAYOUT)
    shelf.ready(other)
    assert place(shelf, LAYOUT) != place(shelf, other)
    assert (place(shelf, other) / "hosts").read_bytes() == b"x"


def test_what_a_crash_left_half_built_is_taken_for_nothing(shelf: SkeletonShelf) -> None:
    place(shelf, LAYOUT).with_name(".draft-0").mkdir()
    shelf.ready(LAYOUT)
    assert (place(shelf, LAYOUT) / "proc").is_dir()
    shelf.clear()
    assert not shelf.directory.exists()
