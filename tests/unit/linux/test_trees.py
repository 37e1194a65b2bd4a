"""Hostile trees are measured and removed, whatever their shape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.linux.trees import disk_usage, remove_tree, spread

NO_END = 1 << 62


def make_deep(top: Path, levels: int) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, 5000)
    remove_tree(top)
    assert not top.exists()


def test_unreadable_directories_are_removed(tmp_path: Path) -> None:
    closed = tmp_path / "top" / "a" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    (closed / "inner").mkdir()
    closed.chmod(0)
    closed.parent.chmod(0o500)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_a_directory_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from sandboxd.linux.trees import make_directory; "
        "make_directory(Path(sys.argv[1]), mode=0o755); "
        "make_directory(Path(sys.argv[2]), mode=0o1777)"
    )
    plain, sticky = tmp_path / "plain", tmp_path / "sticky"
    subprocess.run([sys.executable, "-c", code, plain, sticky], check=True, umask=0o077)
    assert plain.stat().st_mode & 0o7777 == 0o755
    assert sticky.stat().st_mode & 0o7777 == 0o1777


def test_the_label_goes_last_and_with_the_rest(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "full" / "inner").mkdir(parents=True)
    (top / "full" / "inner" / "file").touch()
    (top / "label").touch()
    remove_tree(top, last="label")
    assert not top.exists()


def test_a_tree_is_spread_where_that_is_possible_and_left_alone_elsewhere(tmp_path: Path) -> None:
    for directory in (tmp_path, Path("/dev/shm")):
        spread(directory)
        assert directory.is_dir()


def test_more_names_than_are_held_at_once_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "many").mkdir(parents=True)
    for number in range(10_001):
        (top / "many" / str(number)).touch()
    remove_tree(top)
    assert not top.exists()


def test_what_a_removal_that_was_broken_off_moved_is_in_nobodys_way(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for serial in range(3):
        (top / f".removing-{serial}-{os.getpid()}" / "a" / "b").mkdir(parents=True)
    (top / "x" / "y" / "z").mkdir(parents=True)
    remove_tree(top)
    assert not top.exists()


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x" * 100_000)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "file-link").symlink_to(outside / "precious")
    assert disk_usage(top, enough_bytes=NO_END) < 100_000
    remove_tree(top)
    assert (outside / "precious").exists()


def test_what_is_gone_already_is_success(tmp_path: Path) -> None:
    remove_tree(tmp_path / "never")
    assert disk_usage(tmp_path / "never", enough_bytes=NO_END) == 0


def test_a_file_that_is_no_directory_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "file")


def test_usage_counts_blocks_below_closed_directories_and_leaves_their_mode(tmp_path: Path) -> None:
    closed = tmp_path / "a" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_bytes(b"x" * 100_000)
    (closed / "sparse").touch()
    os.truncate(closed / "sparse", 1 << 30)
    closed.chmod(0)
    try:
        used = disk_usage(tmp_path, enough_bytes=NO_END)
        assert 100_000 <= used < 200_000
        assert closed.stat().st_mode & 0o777 == 0
    finally:
        closed.chmod(0o700)


def test_usage_stops_once_it_is_enough(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
    assert 1000 < disk_usage(tmp_path, enough_bytes=1000) < 200_000


def test_usage_of_a_deep_tree_holds_few_descriptors(tmp_path: Path) -> None:
    make_deep(tmp_path, 2000)
    before = open_descriptors()
    assert disk_usage(tmp_path, enough_bytes=NO_END) > 0
    assert open_descriptors() == before
    remove_tree(tmp_path / "d")


def test_what_lies_deeper_than_any_path_is_measured_with_few_descriptors(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, 1000)
    here = os.open(top, os.O_RDONLY)
    for level in range(1000):
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        if level in {10, 500, 999}:
            file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
            os.write(file, b"x" * 1_000_000)
            os.fsync(file)
            os.close(file)
    os.close(here)
    before = open_descriptors()
    assert disk_usage(top, enough_bytes=NO_END) > 3_000_000
    assert open_descriptors() == before
    remove_tree(top)
